-- Takes or keeps a role: ?1 role, ?2 relay, ?3 how long. Returns a row if it is this relay's.
insert into outbox_role (role, relay, expires_at, lasts)
values (?1, ?2, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + ?3, ?3)
on conflict (role) do update set relay = excluded.relay, expires_at = excluded.expires_at, lasts = excluded.lasts
where outbox_role.relay = excluded.relay
   or outbox_role.expires_at <= cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000
   or outbox_role.expires_at > cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000 + 2 * outbox_role.lasts
returning role
