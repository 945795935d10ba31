-- The headers and payload of one row that was too large to be returned by a fetch.
select headers, payload from outbox_message where position = ?1 and id = ?2
