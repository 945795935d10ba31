-- The headers and payload of one row that was too large to come along with a fetch: route, position, id.
select headers, payload from outbox_message where route = ? and position = ? and id = ?
