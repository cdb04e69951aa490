"""What gunicorn does for the shop in each worker; it reads this file by itself."""


def post_worker_init(worker):
    from app import start_worker

    start_worker()


def worker_exit(server, worker):
    from app import timer

    timer.close(timeout=10)  # callbacks that run may finish
