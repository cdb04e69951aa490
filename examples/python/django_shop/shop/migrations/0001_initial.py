from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("status", models.CharField(default="open", max_length=10)),
                ("due", models.DateTimeField()),
            ],
        ),
    ]
