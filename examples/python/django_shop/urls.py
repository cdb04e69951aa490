from django.urls import path
from shop import views

urlpatterns = [
    path("orders", views.place),
    path("orders/<str:order_id>", views.show),
    path("orders/<str:order_id>/pay", views.pay),
]
