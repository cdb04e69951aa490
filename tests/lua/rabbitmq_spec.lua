-- The RabbitMQ store from Lua, by itself and with a store that keeps its orders.
-- tiers: full

local b = {
    describe = describe, it = it, setup = setup, teardown = teardown,
    before_each = before_each, after_each = after_each,
}
local check = require "server_store"

check(b, {
    name = "RabbitMQ", server = "rabbitmq", scheme = "amqp", apart = "prefix", worker = "",
    blind = true,
})
check(b, {
    name = "RabbitMQ and SQLite", server = "rabbitmq", scheme = "amqp", apart = "prefix",
    worker = "", ticket = true,
})
