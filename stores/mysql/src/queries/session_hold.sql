-- Marks this session, once, as one of relays: its number, its server, whether it is marked. The lock ends with the session.
select
    connection_id(),
    concat(@@hostname, ':', @@port /*!80000 , ':', @@server_uuid */),
    coalesce(is_used_lock(concat('outbox_session_', connection_id())) = connection_id(), false)
        or get_lock(concat('outbox_session_', connection_id()), 0)
