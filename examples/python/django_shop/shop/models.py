from django.db import models


class Order(models.Model):
    """Payment and closing are two writers. Both change an order only while it is open, with
    one conditional UPDATE, so exactly one of them wins, in whatever worker they run."""

    id = models.CharField(primary_key=True, max_length=40)
    status = models.CharField(max_length=10, default="open")
    due = models.DateTimeField()

    @classmethod
    def change(cls, order_id: str, status: str) -> bool:
        """The order goes from open to `status`; false when it is not open any more."""
        return cls.objects.filter(pk=order_id, status="open").update(status=status) == 1
