-- The PostgreSQL store from Lua.
-- tiers: full

require "server_store"({
    describe = describe, it = it, setup = setup, teardown = teardown,
    before_each = before_each, after_each = after_each,
}, {
    name = "PostgreSQL", server = "postgresql", apart = "schema", worker = "&migrate=no",
})
