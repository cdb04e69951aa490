import secrets
from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from .models import Order
from .timers import close_unpaid, timer


@require_POST
def place(request: HttpRequest) -> JsonResponse:
    order_id = "OID" + secrets.token_hex(8)
    due = timezone.now() + timedelta(seconds=settings.PAY_WITHIN)
    # First the timer, then the row: a crash between them leaves a timer without an order,
    # which does nothing, and never an order without a timer.
    timer.schedule_at(order_id, due, close_unpaid)
    order = Order.objects.create(pk=order_id, due=due)
    return JsonResponse({"id": order.id, "status": order.status}, status=201)


@require_GET
def show(request: HttpRequest, order_id: str) -> JsonResponse:
    order = get_object_or_404(Order, pk=order_id)
    return JsonResponse({"id": order.id, "status": order.status})


@require_POST
def pay(request: HttpRequest, order_id: str) -> JsonResponse:
    paid = Order.change(order_id, "paid")
    if paid:
        timer.cancel(order_id)  # UNKNOWN when another worker has it: that one finds it paid
    order = get_object_or_404(Order, pk=order_id)
    return JsonResponse({"id": order.id, "status": order.status}, status=200 if paid else 409)
