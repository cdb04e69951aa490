"""A private RabbitMQ for a test, what pika sees of it, and the articles' own delay queue on it."""

from __future__ import annotations

import threading
import time

import pika
from private_server import PrivateServer
from support import PATIENCE


def prefix_of(url: str) -> str:
    """What the names of this store begin with."""
    return url.split("prefix=")[1].split("&")[0]


class Server(PrivateServer):
    script = "rabbitmq"
    fresh = "?new=0s&prefix={}"

    def ctl(self, *words: str) -> str:
        return self.do("ctl", *words)

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.URLParameters(self.url))

    def queues(self, *columns: str) -> dict[str, list[str]]:
        """Of each queue, by its name."""
        rows = self.ctl("list_queues", "--no-table-headers", "name", *columns).split("\n")
        return {words[0]: words[1:] for words in (row.split("\t") for row in rows) if words[0]}

    def messages(self, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
        """All that lies ready in it, which stays there."""
        with self.connect() as connection:
            channel = connection.channel()
            found = []
            while (got := channel.basic_get(queue))[0] is not None:
                found.append(got[1:])
            channel.close()  # What was got and not acknowledged goes back.
            return found


class Article:
    """As the articles have it: a delay queue whose messages each have a TTL, a dead-letter exchange,
    and a work queue behind that, with manual acknowledgement."""

    def __init__(self, server: Server, name: str, kind: str = "classic") -> None:
        self.connection, self.name = server.connect(), name
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.exchange_declare(f"{name}.dlx", "direct", durable=True)
        self.channel.queue_declare(f"{name}.work", durable=True)
        self.channel.queue_bind(f"{name}.work", f"{name}.dlx", "cancel")
        self.channel.queue_declare(
            f"{name}.delay",
            durable=True,
            arguments={
                "x-queue-type": kind,
                "x-dead-letter-exchange": f"{name}.dlx",
                "x-dead-letter-routing-key": "cancel",
            },
        )
        self.due: dict[str, float] = {}

    def schedule(self, id: str, delay: float) -> None:
        self.due[id] = time.monotonic() + delay
        self.channel.basic_publish(
            "",
            f"{self.name}.delay",
            id.encode(),
            pika.BasicProperties(delivery_mode=2, expiration=str(round(delay * 1000))),
        )

    def lateness(self) -> dict[str, float]:
        """Consume until all have come: by how much each was late."""
        late: dict[str, float] = {}
        got = self.channel.consume(f"{self.name}.work", inactivity_timeout=PATIENCE)
        for method, _, body in got:
            assert method is not None, f"the article's queue stands still at {late}"
            late[body.decode()] = time.monotonic() - self.due[body.decode()]
            self.channel.basic_ack(method.delivery_tag)
            if len(late) == len(self.due):
                break
        self.connection.close()
        return late

    def in_thread(self) -> ArticleThread:
        return ArticleThread(self)


class ArticleThread(threading.Thread):
    """Its consumer; its `late` stands once it was joined."""

    def __init__(self, article: Article) -> None:
        super().__init__()
        self.article, self.late = article, {}

    def run(self) -> None:
        self.late = self.article.lateness()
