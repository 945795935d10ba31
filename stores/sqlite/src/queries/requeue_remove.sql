-- Removes dead letters that were appended again: ?1 pairs of number and bucket (JSON).
delete from outbox_dead where number in (select value ->> 0 from json_each(?1))
