insert into outbox_stripe (route, stripe, number, position, first_number, first_position)
select m.route, m.stripe, 1, m.now, 1, m.now
from (
    select f.route, f.stripe,
           timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) * 1024 + f.stripe as now
    from (
        select cast(json_unquote(json_extract(p.fields, '$.route')) as binary) as route,
               cast(json_extract(p.fields, '$.stripe') as signed) as stripe
        from (select length(convert(? using binary)) as bytes, json_extract(convert(? using utf8mb4), '$') as fields) p
    ) f
) m
on duplicate key update
    previous_position = outbox_stripe.position,
    first_number = outbox_stripe.number + 1,
    first_position = greatest(outbox_stripe.position + 1024, values(first_position)),
    position = greatest(outbox_stripe.position + 1024, values(first_position)),
    number = outbox_stripe.number + 1
