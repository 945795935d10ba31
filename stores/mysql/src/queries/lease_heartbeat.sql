-- A relay lives: route, relay, label, until when, how long, since when it has no transport, fingerprint, its session and the server of that.
insert into outbox_relay (route, relay, label, expires_at, lasts, unavailable_since, fingerprint, session, server)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on duplicate key update
    label = values(label),
    expires_at = values(expires_at),
    lasts = values(lasts),
    unavailable_since = values(unavailable_since),
    fingerprint = values(fingerprint),
    session = values(session),
    server = values(server),
    session_lost_at = null
