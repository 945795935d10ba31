-- The database's clock: microseconds since 1970.
select timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))
