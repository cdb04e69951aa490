"""What gunicorn does for the shop in each worker; it reads this file by itself."""


def post_worker_init(worker):
    from app import start_worker

    start_worker()
