-- Recorded retentions of handled ids.
select handled_ids_kept, handled_ids_max_age, renewed_at from outbox_retention
