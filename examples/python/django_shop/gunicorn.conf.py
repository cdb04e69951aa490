"""What gunicorn does for the shop in each worker; it reads this file by itself."""


def post_worker_init(worker):
    from shop.timers import start_worker

    start_worker()
