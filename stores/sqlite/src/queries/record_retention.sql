-- Records a retention of handled ids, or renews its record: ?1 retention, ?2 maximum age.
insert into outbox_retention (handled_ids_kept, handled_ids_max_age, renewed_at)
values (?1, ?2, cast(round((julianday('now') - 2440587.5) * 86400000.0) as integer) * 1000)
on conflict (handled_ids_kept, handled_ids_max_age) do update set renewed_at = excluded.renewed_at
