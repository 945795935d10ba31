-- Records a retention of handled ids, or renews its record: $1 retention, $2 maximum age.
insert into outbox_retention (handled_ids_kept, handled_ids_max_age, renewed_at)
values ($1::bigint, $2::bigint, outbox_now())
on conflict (handled_ids_kept, handled_ids_max_age) do update set renewed_at = excluded.renewed_at
