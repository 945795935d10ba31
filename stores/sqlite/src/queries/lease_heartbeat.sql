-- A relay lives: ?1 route, ?2 relay, ?3 label, ?4 until when, ?5 how long, ?6 since when it has no transport, ?7 fingerprint.
insert into outbox_relay (route, relay, label, expires_at, lasts, unavailable_since, fingerprint)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
on conflict (route, relay) do update set
    label = excluded.label,
    expires_at = excluded.expires_at,
    lasts = excluded.lasts,
    unavailable_since = excluded.unavailable_since,
    fingerprint = excluded.fingerprint
