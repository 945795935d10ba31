-- Takes or keeps a role: $1 role, $2 relay, $3 how long. Returns a row if it is this relay's.
insert into outbox_role as r (role, relay, expires_at, lasts)
values ($1::text, $2::uuid, outbox_now() + $3::bigint, $3::bigint)
on conflict (role) do update set relay = excluded.relay, expires_at = excluded.expires_at, lasts = excluded.lasts
where r.relay = excluded.relay or r.expires_at <= outbox_now() or r.expires_at > outbox_now() + 2 * r.lasts
returning r.role
