-- Functions for relays, version 3.
--
-- An operation that checks and then acts is a function: one round trip, so that no program can be
-- paused in the middle of it with locks held, and every statement inside sees all earlier commits.
-- They rely on READ COMMITTED.

-- Makes this transaction durable when it commits, whatever the database's or the role's default.
create function outbox_durably() returns void
    language plpgsql
    as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end $$;

-- Identity of this life of the database: an event that loses commits (a crash, a failover, a
-- restore) ends all connections. Behind a pooler a connection says nothing, and the server's start
-- time is used: it detects a failover, but not a crash that only restarts the server's processes.
create function outbox_life(pooled boolean) returns bigint
    language sql stable
    as $$
    select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint
           # case when pooled then 0 else pg_backend_pid()::bigint << 40 end
$$;

-- A relay's advisory lock, which its session holds while it lives: the key of the relay.
create function outbox_session_key(of_route text, of_relay uuid) returns integer
    language sql immutable
    as $$ select hashtext(of_route || ' ' || of_relay) $$;

-- The setting in which a session notes the relay whose lock it holds.
create function outbox_session_setting(of_route text, of_relay uuid) returns text
    language sql stable set search_path from current
    as $$ select 'outbox.session_' || replace(outbox_session_key(of_route, of_relay)::text, '-', '_') $$;

-- True if this session holds the lock of this relay.
create function outbox_is_session_of(of_route text, of_relay uuid) returns boolean
    language sql stable set search_path from current
    as $$ select coalesce(current_setting(outbox_session_setting(of_route, of_relay), true) = of_relay::text, false) $$;

-- Marks this session as that of a relay, once. It ends with the relay's process, long before the
-- lease does. False: another relay's key is the same, and it is just being looked at.
create function outbox_hold_session(my_route text, me uuid) returns boolean
    language plpgsql set search_path from current
    as $$
begin
    if outbox_is_session_of(my_route, me) then
        return true;
    end if;
    if not pg_try_advisory_lock_shared('outbox_relay'::regclass::oid::integer, outbox_session_key(my_route, me)) then
        return false;
    end if;
    perform set_config(outbox_session_setting(my_route, me), me::text, false);
    return true;
end $$;

-- The opposite, for a relay that leaves while its session lives on.
create function outbox_leave_session(my_route text, me uuid) returns void
    language plpgsql set search_path from current
    as $$
begin
    if outbox_is_session_of(my_route, me) then
        perform pg_advisory_unlock_shared('outbox_relay'::regclass::oid::integer, outbox_session_key(my_route, me));
        perform set_config(outbox_session_setting(my_route, me), '', false);
    end if;
end $$;

-- Ends the lives of relays whose sessions have ended: looked at twice, half a second apart, so
-- that a relay that only opens a new connection keeps what it has. Epochs fence one that lives on
-- nonetheless. Returns the microseconds until the next look; null: there is nothing to look at.
create function outbox_end_lost_sessions(my_route text, me uuid, now bigint) returns bigint
    language plpgsql set search_path from current
    as $$
declare
    grace constant bigint := 500000;
    -- While there are others: a relay alone has no need to look.
    every constant bigint := 1500000;
    other outbox_relay;
    recheck bigint;
begin
    for other in
        select r.* from outbox_relay r where r.route = my_route and r.relay <> me and r.has_session and r.expires_at > now
    loop
        -- Only its session has the lock, and only one heartbeat of a route asks at a time. A
        -- session is not in its own way: it notes the relays of its process.
        if outbox_is_session_of(my_route, other.relay)
            or not pg_try_advisory_xact_lock('outbox_relay'::regclass::oid::integer, outbox_session_key(my_route, other.relay)) then
            if other.session_lost_at is not null then
                update outbox_relay r set session_lost_at = null where r.route = my_route and r.relay = other.relay;
            end if;
            recheck := least(recheck, every);
        elsif other.session_lost_at is null or other.session_lost_at > now then
            update outbox_relay r set session_lost_at = now where r.route = my_route and r.relay = other.relay;
            recheck := least(recheck, grace);
        elsif now - other.session_lost_at < grace then
            recheck := least(recheck, grace - (now - other.session_lost_at));
        else
            update outbox_relay r set expires_at = now where r.route = my_route and r.relay = other.relay;
        end if;
    end loop;
    return recheck;
end $$;

-- One heartbeat: extends the relay's life, frees lost buckets, acquires up to the fair share,
-- returns the owned buckets.
create function outbox_heartbeat(my_route text, me uuid, my_label text, my_lasts bigint, available boolean, my_fingerprint bigint,
                                 my_low_water bigint, my_covered bigint[], my_life bigint, pooled boolean, yielding integer[],
                                 out buckets smallint[], out epochs bigint[], out low_waters bigint[], out fair_share integer,
                                 out relays integer, out agree boolean, out paused text[], out now bigint, out life bigint,
                                 out recheck bigint)
    language plpgsql set search_path from current
    as $$
declare
    before outbox_relay;
    counted integer;
    i_count boolean;
    mine integer;
    changed smallint[];
    taken smallint[];
    has_session boolean := false;
begin
    -- One heartbeat of a route at a time: the inputs of its decision can't change meanwhile. The
    -- clock is read after the lock was acquired.
    perform pg_advisory_xact_lock('outbox_lease'::regclass::oid::integer, hashtext(my_route));
    now := outbox_now();
    life := outbox_life(pooled);
    -- In another life the positions below a mark may have come back. Once saved it stays true,
    -- whatever is lost: commits are lost from the end, and it was committed after all that it
    -- passes, and after those positions were taken from the sequence. So a relay that begins anew,
    -- and covers nothing yet, keeps the earlier marks.
    if my_life is distinct from life then
        my_covered := '{}';
    end if;

    -- Extends the relay's life. A relay whose life was over no longer owns anything: it acquires
    -- anew.
    select r.* into before from outbox_relay r where r.route = my_route and r.relay = me;
    if before.relay is null or before.expires_at <= now or before.expires_at > now + 2 * before.lasts then
        update outbox_lease l set relay = null, expires_at = null, low_water = coalesce(l.low_water, before.low_water)
        where l.route = my_route and l.relay = me;
    else
        update outbox_lease l set relay = null, expires_at = null, low_water = coalesce(l.low_water, before.low_water)
        where l.route = my_route and l.relay = me and l.expires_at <= now;
        -- A bucket that is given up is kept no longer than was promised so far. One that the mark
        -- covers has no mark of its own; one that it does not cover (any more) keeps its own:
        -- through a heartbeat whose answer was lost, the relay may own more than it read.
        select array_agg(l.bucket) into changed
        from outbox_lease l
        where l.route = my_route and l.relay = me
          and ((l.bucket = any(yielding)) <> (l.expires_at is not null)
               or coalesce(my_covered[l.bucket + 1] = l.epoch, false) <> (l.low_water is null));
        if changed is not null then
            -- In the order in which transitions lock them.
            perform 1 from outbox_lease l where l.route = my_route and l.bucket = any(changed) order by l.bucket for no key update;
            update outbox_lease l
            set expires_at = case when l.bucket = any(yielding) then coalesce(l.expires_at, before.expires_at) end,
                low_water = case when my_covered[l.bucket + 1] = l.epoch then null else coalesce(l.low_water, before.low_water) end
            where l.route = my_route and l.bucket = any(changed);
        end if;
    end if;
    if not pooled then
        has_session := outbox_hold_session(my_route, me);
        recheck := outbox_end_lost_sessions(my_route, me, now);
    end if;
    insert into outbox_relay as r (route, relay, label, expires_at, lasts, low_water, unavailable_since, fingerprint, has_session)
    values (my_route, me, my_label, now + my_lasts, my_lasts, my_low_water, case when available then null else now end, my_fingerprint, has_session)
    on conflict (route, relay) do update set
        label = excluded.label, expires_at = excluded.expires_at, lasts = excluded.lasts, low_water = excluded.low_water,
        has_session = excluded.has_session, session_lost_at = null,
        unavailable_since = case when available then null else coalesce(r.unavailable_since, now) end, fingerprint = excluded.fingerprint;

    -- The share: all buckets divided by the relays that count, rounded up. A relay that has been without its transport for longer than a
    -- lease does not count while another has one.
    select count(*), count(*) filter (where r.counts), coalesce(bool_or(r.counts) filter (where r.relay = me), false),
           count(distinct r.fingerprint) <= 1
    into relays, counted, i_count, agree
    from (
        select w.relay, w.fingerprint,
               w.unavailable_since is null or now - w.unavailable_since <= w.lasts
                   or not bool_or(w.unavailable_since is null) over () as counts
        from outbox_relay w
        where w.route = my_route and w.expires_at > now and w.expires_at <= now + 2 * w.lasts
    ) r;
    fair_share := case when i_count then (256 + counted - 1) / counted else 0 end;

    -- Takes free buckets: the lowest ones, up to the share, but none that is being given up.
    if (select count(*) < 256 from outbox_lease l where l.route = my_route) then
        insert into outbox_lease (route, bucket) select my_route, b from generate_series(0, 255) b on conflict do nothing;
    end if;
    select count(*) into mine from outbox_lease l where l.route = my_route and l.relay = me;
    if mine < fair_share then
        select array_agg(f.bucket) into taken
        from (
            select l.bucket
            from outbox_lease l
            left join outbox_relay r
                on r.route = l.route and r.relay = l.relay and r.expires_at > now and r.expires_at <= now + 2 * r.lasts
            where l.route = my_route and (r.relay is null or l.expires_at <= now) and l.bucket <> all(yielding)
            order by l.bucket
            limit fair_share - mine
        ) f;
        if taken is not null then
            -- In the order in which transitions lock them. It waits for a running one: its relay may
            -- no longer own the buckets, but its step was valid when it began.
            perform 1 from outbox_lease l where l.route = my_route and l.bucket = any(taken) order by l.bucket for update;
            update outbox_lease l
            set relay = me, epoch = l.epoch + 1, since = now, expires_at = null,
                low_water = coalesce(l.low_water, (select r.low_water from outbox_relay r where r.route = my_route and r.relay = l.relay), 0)
            where l.route = my_route and l.bucket = any(taken);
        end if;
    end if;

    select coalesce(array_agg(l.bucket order by l.bucket), '{}'), coalesce(array_agg(l.epoch order by l.bucket), '{}'),
           coalesce(array_agg(coalesce(l.low_water, my_low_water) order by l.bucket), '{}')
    into buckets, epochs, low_waters
    from outbox_lease l where l.route = my_route and l.relay = me;
    select coalesce(array_agg(p.topic order by p.topic), '{}') into paused from outbox_pause p where p.route = my_route;
end $$;

-- Gives buckets back, those that are still this relay's under these epochs; with leaving, the relay is gone too. Those that the mark does not
-- cover keep theirs, and so do those whose leases have expired.
create function outbox_give_back(my_route text, me uuid, given integer[], under bigint[], mark bigint, covered bigint[], mark_life bigint,
                                 pooled boolean, leaving boolean) returns void
    language plpgsql set search_path from current
    as $$
declare
    now bigint;
begin
    perform pg_advisory_xact_lock('outbox_lease'::regclass::oid::integer, hashtext(my_route));
    now := outbox_now();
    if mark_life is distinct from outbox_life(pooled) or not exists (
        select from outbox_relay r
        where r.route = my_route and r.relay = me and r.expires_at > now and r.expires_at <= now + 2 * r.lasts
    ) then
        covered := '{}';
    end if;
    update outbox_lease l
    set relay = null, expires_at = null,
        low_water = case
            when covered[l.bucket + 1] = l.epoch and (l.expires_at is null or l.expires_at > now) then mark
            else coalesce(l.low_water, (select r.low_water from outbox_relay r where r.route = l.route and r.relay = l.relay), 0)
        end
    from unnest(given, under) g(bucket, epoch)
    where l.route = my_route and l.relay = me and l.bucket = g.bucket and l.epoch = g.epoch;
    if leaving then
        update outbox_lease l set relay = null, expires_at = null, low_water = coalesce(l.low_water, r.low_water)
        from outbox_relay r
        where l.route = my_route and l.relay = me and r.route = l.route and r.relay = l.relay;
        delete from outbox_relay r where r.route = my_route and r.relay = me;
        perform outbox_leave_session(my_route, me);
    end if;
end $$;

-- Moves messages of a key behind its parked ones; skips missing ones.
create function outbox_park(of_route text, of_topic text, of_key text, positions bigint[], ids uuid[]) returns void
    language sql set search_path from current
    as $$
    with gone as (
        delete from outbox_message m
        using unnest(positions, ids) w(position, id)
        where m.position = w.position and m.id = w.id and m.route = of_route and m.topic = of_topic
          and coalesce(m.key, m.id::text) = of_key
        returning m.*
    )
    insert into outbox_parked
        (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
         appended_at, parked_at)
    select g.position, g.id, g.route, g.bucket, g.topic, g.key, of_key, g.event_type, g.schema_version, g.content_type, g.headers,
           g.payload, g.occurred_at, g.appended_at, outbox_now()
    from gone g
    on conflict do nothing
$$;

-- Makes one message a dead letter, hot or parked; false if it is neither. A row of a program that
-- gave a position may have names of any length, and those that an index has are cut to the longest.
create function outbox_bury(of_route text, at_position bigint, of_id uuid, why text, tried bigint, first text, last text) returns boolean
    language plpgsql set search_path from current
    as $$
begin
    with hot as (
        delete from outbox_message m where m.position = at_position and m.id = of_id and m.route = of_route
        returning m.position, m.id, m.route, m.bucket, m.topic, m.key, coalesce(m.key, m.id::text) as order_key, m.event_type,
                  m.schema_version, m.content_type, m.headers, m.payload, m.occurred_at, m.appended_at
    ), parked as (
        delete from outbox_parked p where p.position = at_position and p.id = of_id and p.route = of_route
        returning p.position, p.id, p.route, p.bucket, p.topic, p.key, p.order_key, p.event_type, p.schema_version, p.content_type,
                  p.headers, p.payload, p.occurred_at, p.appended_at
    )
    insert into outbox_dead
        (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
         appended_at, reason, attempts, first_failure, last_failure, died_at)
    select g.position, g.id, g.route, g.bucket, left(g.topic, 249), g.key, left(g.order_key, 255), g.event_type, g.schema_version,
           g.content_type, g.headers, g.payload, g.occurred_at, g.appended_at, why, tried, first, last, outbox_now()
    from (select * from hot union all select * from parked) g;
    return found;
end $$;

-- Deletes one message, hot or parked, and records that: an object of actor, operation and detail. False if it is neither.
create function outbox_drop(of_route text, of_topic text, of_key text, at_position bigint, of_id uuid, note jsonb) returns boolean
    language plpgsql set search_path from current
    as $$
begin
    delete from outbox_message m where m.position = at_position and m.id = of_id and m.route = of_route;
    if not found then
        delete from outbox_parked p where p.position = at_position and p.id = of_id and p.route = of_route;
    end if;
    if not found then
        return false;
    end if;
    perform outbox_note(note ->> 'actor', note ->> 'operation', of_route, of_topic, of_key, note ->> 'detail', 1, array[of_id]);
    return true;
end $$;

-- The id of the first parked message of a key.
create function outbox_first_parked(of_route text, of_topic text, of_key text) returns uuid
    language sql stable set search_path from current
    as $$
    select p.id from outbox_parked p where p.route = of_route and p.topic = of_topic and p.order_key = of_key order by p.position limit 1
$$;

-- One step of a failing key, its lease locked already. Returns the key's version; -1 for a key
-- without a state, -2 for a stale step.
create function outbox_step(s jsonb, history boolean) returns bigint
    language plpgsql set search_path from current
    as $$
declare
    of_route text := s ->> 'route';
    of_topic text := s ->> 'topic';
    of_key text := s ->> 'key';
    positions bigint[] := array(select p.v::bigint from jsonb_array_elements_text(s -> 'positions') with ordinality p(v, n) order by p.n);
    ids uuid[] := array(select i.v::uuid from jsonb_array_elements_text(s -> 'ids') with ordinality i(v, n) order by i.n);
    state outbox_key;
    renewed bigint;
    hold boolean;
    now bigint := outbox_now();
begin
    select k.* into state from outbox_key k where k.route = of_route and k.topic = of_topic and k.key = of_key for update;
    if s ->> 'version' is not null and (s ->> 'version')::bigint is distinct from state.version then
        return -2;
    end if;

    if s ->> 'step' = 'park' then
        if state.version is null then
            return -2;
        end if;
        perform outbox_park(of_route, of_topic, of_key, positions, ids);
        -- The same state: a running retry need not restart because more messages were parked behind
        -- it.
        return state.version;
    end if;

    renewed := nextval('outbox_key_version');
    if s ->> 'step' = 'fail' then
        if not exists (
            select from outbox_message m
            where m.position = positions[1] and m.id = ids[1] and m.route = of_route and m.topic = of_topic
              and coalesce(m.key, m.id::text) = of_key
        ) and not exists (
            select from outbox_parked p
            where p.position = positions[1] and p.id = ids[1] and p.route = of_route and p.topic = of_topic and p.order_key = of_key
        ) then
            return -2;
        end if;
        perform outbox_park(of_route, of_topic, of_key, positions, ids);
        if state.version is not null and outbox_first_parked(of_route, of_topic, of_key) is distinct from ids[1] then
            -- The first message decides the key's state; a later one that failed too just waits
            -- behind it.
            update outbox_key k set version = renewed where k.route = of_route and k.topic = of_topic and k.key = of_key;
            return renewed;
        end if;
        hold := s ->> 'retry_after' is null;
        insert into outbox_key as k
            (route, topic, key, bucket, version, held, next_attempt_at, failing, attempts, first_failure, last_failure, since)
        values
            (of_route, of_topic, of_key, (s ->> 'bucket')::smallint, renewed, hold, now + (s ->> 'retry_after')::bigint, ids[1],
             (s ->> 'attempts')::bigint, s ->> 'first', s ->> 'last', now)
        on conflict (route, topic, key) do update set
            version = excluded.version, held = k.held or excluded.held,
            next_attempt_at = case when not k.held then excluded.next_attempt_at end,
            failing = excluded.failing, attempts = excluded.attempts, first_failure = excluded.first_failure,
            last_failure = excluded.last_failure;
        return renewed;
    end if;

    if s ->> 'step' = 'bury' then
        if s -> 'discard' is not null then
            if not outbox_drop(of_route, of_topic, of_key, positions[1], ids[1], s -> 'discard') then
                return -2;
            end if;
        elsif not outbox_bury(of_route, positions[1], ids[1], s ->> 'reason', (s ->> 'attempts')::bigint, s ->> 'first', s ->> 'last') then
            return -2;
        end if;
        if state.version is null then
            return -1;
        end if;
        if state.failing is not null and state.failing = outbox_first_parked(of_route, of_topic, of_key) then
            -- The buried message was not the first: the first keeps failing.
            update outbox_key k set version = renewed where k.route = of_route and k.topic = of_topic and k.key = of_key;
            return renewed;
        end if;
    else
        if state.version is null then
            return -1;
        end if;
        with gone as (
            delete from outbox_parked p
            using unnest(positions, ids) w(position, id)
            where p.position = w.position and p.id = w.id and p.route = of_route and p.topic = of_topic and p.order_key = of_key
            returning p.*
        )
        insert into outbox_history
            (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
             appended_at, delivered_at)
        select g.position, g.id, g.route, g.bucket, g.topic, g.key, g.order_key, g.event_type, g.schema_version, g.content_type, g.headers,
               g.payload, g.occurred_at, g.appended_at, now
        from gone g where history;
        if not state.held and outbox_first_parked(of_route, of_topic, of_key) is null then
            delete from outbox_key k where k.route = of_route and k.topic = of_topic and k.key = of_key;
            return -1;
        end if;
    end if;
    -- The key continues with its next message, with zero attempts: at once, unless it is held.
    update outbox_key k
    set version = renewed, next_attempt_at = case when not k.held then now end, failing = null, attempts = 0, first_failure = null,
        last_failure = null
    where k.route = of_route and k.topic = of_topic and k.key = of_key;
    return renewed;
end $$;

-- Steps of failing keys, in order: an array of objects. One number for each: a version, or -1 done and no state, -2 stale, -3 lease lost.
create function outbox_transition(steps jsonb, history boolean) returns bigint[]
    language plpgsql set search_path from current
    as $$
declare
    s jsonb;
    now bigint;
    answers bigint[] := '{}';
begin
    perform outbox_durably();
    -- The fence. A join on the lease would not be one: the lease that it has read may be over
    -- before this commits. The lease rows are locked, in the order in which heartbeats lock them,
    -- so that no other relay can take these buckets until then.
    perform 1
    from outbox_lease l
    where (l.route, l.bucket) in (
        select d.s ->> 'route', (d.s ->> 'bucket')::smallint from jsonb_array_elements(steps) d(s)
    )
    order by l.route, l.bucket
    for share;
    for s in select d.v from jsonb_array_elements(steps) with ordinality d(v, n) order by d.n loop
        now := outbox_now();
        if exists (
            select
            from outbox_lease l
            join outbox_relay r on r.route = l.route and r.relay = l.relay
            where l.route = s ->> 'route' and l.bucket = (s ->> 'bucket')::smallint and l.relay = (s ->> 'relay')::uuid
              and l.epoch = (s ->> 'epoch')::bigint
              and r.expires_at > now and r.expires_at <= now + 2 * r.lasts and (l.expires_at is null or l.expires_at > now)
        ) then
            answers := answers || outbox_step(s, history);
        else
            answers := answers || -3::bigint;
        end if;
    end loop;
    return answers;
end $$;

insert into outbox_schema (version, name) values (3, 'relay');
