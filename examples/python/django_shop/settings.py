"""The least that the shop needs.

SHOP_DB is the shop's database, SHOP_PAY_WITHIN the seconds to pay, LAPSE_URL where lapse
keeps what is pending.
"""

import os
import secrets

SECRET_KEY = os.environ.get("SECRET_KEY") or secrets.token_hex()
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DB", "shop.db"),
        "OPTIONS": {"timeout": 30},
        "CONN_MAX_AGE": 60,
    }
}
USE_TZ = True
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}

PAY_WITHIN = float(os.environ.get("SHOP_PAY_WITHIN", 30 * 60))
GRACE = float(os.environ.get("SHOP_GRACE", 40))  # gunicorn's graceful_timeout, and some
LAPSE_URL = os.environ.get("LAPSE_URL", "memory:")
