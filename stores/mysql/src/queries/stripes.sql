-- How far the stripes of a route were committed: its route.
select stripe, number, position, first_number, first_position, previous_position from outbox_stripe where route = ? and number > 0 order by stripe
