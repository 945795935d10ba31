-- Functions for operators and maintenance, version 4. Functions for the same reason as in version
-- 3.

-- Records an operation, in its transaction. It names the first hundred of these messages.
create function outbox_note(of_actor text, of_operation text, of_route text, of_topic text, of_key text, of_detail text, messages bigint,
                            ids uuid[]) returns boolean
    language sql set search_path from current
    as $$
    insert into outbox_audit (at, actor, operation, route, topic, key, detail, affected, ids)
    values (outbox_now(), of_actor, of_operation, of_route, of_topic, of_key, of_detail, messages, array_to_string(ids[1:100], ' '))
    returning true
$$;

-- Holds a key: from now on its messages are parked until an operator releases it.
create function outbox_hold(of_route text, of_topic text, of_key text) returns void
    language plpgsql set search_path from current
    as $$
begin
    perform outbox_durably();
    insert into outbox_key as k (route, topic, key, bucket, version, held, since)
    values (of_route, of_topic, of_key, outbox_bucket(of_topic, of_key), nextval('outbox_key_version'), true, outbox_now())
    on conflict (route, topic, key) do update set version = excluded.version, held = true, next_attempt_at = null
    where not k.held;
end $$;

-- Lets a held or failing key try again now, with zero attempts. False: it is neither.
create function outbox_release(of_route text, of_topic text, of_key text) returns boolean
    language plpgsql set search_path from current
    as $$
begin
    perform outbox_durably();
    update outbox_key k
    set version = nextval('outbox_key_version'), held = false, next_attempt_at = outbox_now(), failing = null, attempts = 0,
        first_failure = null
    where k.route = of_route and k.topic = of_topic and k.key = of_key;
    return found;
end $$;

-- Makes the first parked messages of a key dead letters, up to a limit, with the details of the one
-- that failed.
create function outbox_parked_to_dead(state outbox_key, why text, most bigint) returns uuid[]
    language sql set search_path from current
    as $$
    with gone as (
        delete from outbox_parked p
        where (p.position, p.id) in (
            select f.position, f.id from outbox_parked f
            where f.route = (state).route and f.topic = (state).topic and f.order_key = (state).key
            order by f.position
            limit most
        )
        returning p.*
    ), dead as (
        insert into outbox_dead
            (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload, occurred_at,
             appended_at, reason, attempts, first_failure, last_failure, died_at)
        select g.position, g.id, g.route, g.bucket, g.topic, g.key, g.order_key, g.event_type, g.schema_version, g.content_type, g.headers,
               g.payload, g.occurred_at, g.appended_at, why,
               case when (state).failing = g.id then (state).attempts else 0 end,
               case when (state).failing = g.id then (state).first_failure end,
               case when (state).failing = g.id then (state).last_failure end,
               outbox_now()
        from gone g
        order by g.position
        returning number, id
    )
    select coalesce(array_agg(d.id order by d.number), '{}') from dead d
$$;

-- Makes the first parked message of a key a dead letter; the key then tries the next one now. Null: the key is neither failing nor held.
-- No element: nothing is parked.
create function outbox_skip(of_route text, of_topic text, of_key text) returns uuid[]
    language plpgsql set search_path from current
    as $$
declare
    state outbox_key;
    skipped uuid[];
begin
    perform outbox_durably();
    select k.* into state from outbox_key k where k.route = of_route and k.topic = of_topic and k.key = of_key for update;
    if not found then
        return null;
    end if;
    skipped := outbox_parked_to_dead(state, 'skipped', 1);
    if cardinality(skipped) > 0 then
        perform outbox_release(of_route, of_topic, of_key);
        -- That of a message that is gone.
        update outbox_key k set last_failure = null where k.route = of_route and k.topic = of_topic and k.key = of_key;
    end if;
    return skipped;
end $$;

-- Makes parked messages of a key dead letters, up to a limit in one call, and lets the key flow
-- again with the last of them; until then it is held, so that none of the others is sent. Null: the
-- key is neither failing nor held.
create function outbox_discard(of_route text, of_topic text, of_key text, most bigint) returns uuid[]
    language plpgsql set search_path from current
    as $$
declare
    state outbox_key;
    discarded uuid[];
begin
    perform outbox_durably();
    select k.* into state from outbox_key k where k.route = of_route and k.topic = of_topic and k.key = of_key for update;
    if not found then
        return null;
    end if;
    discarded := outbox_parked_to_dead(state, 'discarded', most);
    if cardinality(discarded) < most then
        delete from outbox_key k where k.route = of_route and k.topic = of_topic and k.key = of_key;
    else
        update outbox_key k
        set version = nextval('outbox_key_version'), held = true, next_attempt_at = null, failing = null, attempts = 0, first_failure = null,
            last_failure = null
        where k.route = of_route and k.topic = of_topic and k.key = of_key;
    end if;
    return discarded;
end $$;

-- Appends these dead letters again, in their old order; buckets are computed again, because a wrong
-- one is a possible cause of death. Rows that could never be a message are refused, as on INSERT.
-- The caller has locked the rows and their keys.
create function outbox_requeue_all(numbers bigint[]) returns uuid[]
    language plpgsql set search_path from current
    as $$
declare
    appended uuid[];
begin
    perform outbox_check(d.route, d.topic, d.key, d.event_type, d.schema_version, d.content_type, d.headers, d.payload, d.occurred_at)
    from outbox_dead d where d.number = any(numbers);
    with gone as (
        delete from outbox_dead d where d.number = any(numbers) returning d.*
    ), ordered as materialized (
        select * from gone order by position, number
    ), written as (
        insert into outbox_message
            (position, id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
        select nextval('outbox_message_position'), o.id, o.route, outbox_bucket(o.topic, o.order_key), o.topic, o.key, o.event_type,
               o.schema_version, o.content_type, o.headers, o.payload, o.occurred_at
        from ordered o
        returning id
    )
    select coalesce(array_agg(w.id), '{}') into appended from written w;
    return appended;
end $$;

-- Appends dead letters again, each at the end of its key. If the database refuses some of them, the
-- others are appended. Returns their number and ids, and the ids of the refused ones with the reasons.
create function outbox_requeue(numbers bigint[], out appended bigint, out refused text[], out reasons text[], out ids uuid[])
    language plpgsql set search_path from current
    as $$
declare
    letter record;
begin
    perform outbox_durably();
    refused := '{}';
    reasons := '{}';
    perform 1 from outbox_dead d where d.number = any(numbers) order by d.number for update;
    perform outbox_lock(array(select outbox_hash(d.topic, d.order_key) from outbox_dead d where d.number = any(numbers)));
    begin
        ids := outbox_requeue_all(numbers);
        appended := cardinality(ids);
        return;
    exception when integrity_constraint_violation or data_exception or raise_exception then
        ids := '{}';
    end;
    for letter in
        select d.number, d.id from outbox_dead d where d.number = any(numbers) order by d.position, d.number
    loop
        begin
            ids := ids || outbox_requeue_all(array[letter.number]);
        exception when integrity_constraint_violation or data_exception or raise_exception then
            refused := refused || letter.id::text;
            reasons := reasons || sqlerrm;
        end;
    end loop;
    appended := cardinality(ids);
end $$;

-- Appends the corrected message in place of a dead letter, at the end of its new key, through the
-- trigger of plain INSERT. False: the dead letter no longer exists.
create function outbox_requeue_edited(of_number bigint, id uuid, topic text, key text, event_type text, schema_version bigint, content_type text,
                                      headers bytea, payload bytea, occurred_at bigint) returns boolean
    language plpgsql set search_path from current
    as $$
#variable_conflict use_variable
declare
    of_route text;
begin
    perform outbox_durably();
    delete from outbox_dead d where d.number = of_number returning d.route into of_route;
    if of_route is null then
        return false;
    end if;
    insert into outbox_message (id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
    values (id, of_route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at);
    return true;
end $$;

-- Appends messages of the history again, as outbox_requeue does; they stay in the history.
create function outbox_replay(numbers bigint[]) returns uuid[]
    language plpgsql set search_path from current
    as $$
declare
    appended uuid[];
begin
    perform outbox_durably();
    perform outbox_lock(array(select outbox_hash(h.topic, h.order_key) from outbox_history h where h.number = any(numbers)));
    with ordered as materialized (
        select * from outbox_history h where h.number = any(numbers) order by h.position, h.number
    ), written as (
        insert into outbox_message
            (position, id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
        select nextval('outbox_message_position'), o.id, o.route, outbox_bucket(o.topic, o.order_key), o.topic, o.key, o.event_type,
               o.schema_version, o.content_type, o.headers, o.payload, o.occurred_at
        from ordered o
        returning id
    )
    select coalesce(array_agg(w.id), '{}') into appended from written w;
    return appended;
end $$;

-- The instant up to which ids of a consumer can be removed: the rule of the contract, which counts the retention only while the consumer handles
-- messages. It walks back from the latest id in eighths of the retention; an absence lies between two of them, and takes none.
create function outbox_handled_cut(of_consumer text, now bigint, kept bigint, max_age bigint) returns bigint
    language plpgsql stable set search_path from current
    as $$
declare
    at bigint := now;
begin
    for part in 1 .. 8 loop
        select max(h.handled_at) - kept / 8 into at from outbox_handled h where h.consumer = of_consumer and h.handled_at <= at;
        exit when at is null or at <= now - max_age;
    end loop;
    -- Ignores a null.
    return greatest(at, now - max_age);
end $$;

-- Removes ids of handled messages that are over their time, of each consumer the oldest first. Returns their number. The longest recorded
-- retention counts; a record, for its maximum age and a day after its last renewal: what was handled until then is over that age.
create function outbox_expire_handled(most integer, now bigint, kept bigint, max_age bigint) returns bigint
    language plpgsql set search_path from current
    as $$
declare
    consumer_at text := '';
    oldest bigint;
    cut bigint;
    done bigint;
    removed bigint := 0;
begin
    -- Ignores nulls.
    select greatest(kept, max(r.handled_ids_kept)), greatest(max_age, max(r.handled_ids_max_age)) into kept, max_age
    from outbox_retention r
    where now - r.renewed_at <= r.handled_ids_max_age + 86400000000;
    while removed < most loop
        select h.consumer, h.handled_at into consumer_at, oldest
        from outbox_handled h
        where h.consumer > consumer_at
        order by h.consumer, h.handled_at
        limit 1;
        exit when not found;
        if oldest <= now - kept then
            cut := outbox_handled_cut(consumer_at, now, kept, max_age);
            delete from outbox_handled a
            where a.ctid = any(array(
                select o.ctid
                from outbox_handled o
                where o.consumer = consumer_at and o.handled_at <= cut
                order by o.handled_at
                limit most - removed));
            get diagnostics done = row_count;
            removed := removed + done;
        end if;
    end loop;
    return removed;
end $$;

-- One round of maintenance. Each part first checks whether there is anything to do: an idle round
-- is this one statement. Spans are microseconds; a null history_kept skips the history.
create function outbox_maintain(most integer, history_kept bigint, handled_ids_kept bigint, handled_ids_max_age bigint, relays_kept bigint,
                                out promoted integer, out history_removed bigint, out handled_ids_removed bigint, out relays_removed bigint,
                                out next_due bigint)
    language plpgsql set search_path from current
    as $$
declare
    now bigint := outbox_now();
    first_due bigint;
begin
    promoted := 0;
    history_removed := 0;
    relays_removed := 0;
    select min(s.due_at) into first_due from outbox_scheduled s;
    if first_due <= now then
        perform outbox_durably();
        promoted := outbox_promote(most, now);
        select min(s.due_at) into first_due from outbox_scheduled s;
        if promoted = 0 and first_due <= now then
            -- Another transaction writes to the keys of the due messages: an immediate next round
            -- would be repeated without effect.
            first_due := now + 50000;
        end if;
    end if;
    -- Not greatest alone: it ignores nulls. In this order: a message may have been due since ever.
    next_due := case when first_due is not null then greatest(first_due, now) - now end;

    if history_kept is not null then
        -- Only rows without a partition of their own; partitions are dropped whole.
        delete from outbox_history_rest h
        where h.ctid = any(array(select o.ctid from outbox_history_rest o where o.delivered_at < now - history_kept limit most));
        get diagnostics history_removed = row_count;
    end if;
    handled_ids_removed := outbox_expire_handled(most, now, handled_ids_kept, handled_ids_max_age);
    if exists (
        select from outbox_relay r
        where r.expires_at < now - relays_kept or r.expires_at > now + 2 * r.lasts + relays_kept
    ) then
        with gone as (
            delete from outbox_relay r
            where (r.route, r.relay) in (
                select o.route, o.relay from outbox_relay o
                where o.expires_at < now - relays_kept or o.expires_at > now + 2 * o.lasts + relays_kept
                limit most
            )
            returning r.*
        ), kept as (
            update outbox_lease l set relay = null, expires_at = null, low_water = coalesce(l.low_water, g.low_water)
            from gone g where l.route = g.route and l.relay = g.relay
        )
        select count(*) into relays_removed from gone;
    end if;
end $$;

-- Turns the partitions of the history: creates those of the next two spans, drops expired ones.
-- Their names hold their bounds, in seconds. Returns the approximate number of dropped rows, and
-- whether none was created because the default partition exceeds the given number of bytes (null:
-- no limit): it is read from end to end for each new one, and every settlement waits meanwhile. So
-- the first one begins at once, and the default one holds only the rows before that.
-- Partitions of other roles are not dropped; their names are returned.
create function outbox_turn_history(kept bigint, max_bytes bigint, out dropped bigint, out too_large boolean, out of_others text[])
    language plpgsql set search_path from current
    as $$
declare
    now bigint := outbox_now() / 1000000;
    -- A tenth of the retention, from a minute to a day.
    span bigint := greatest(least(kept / 10000000, 86400), 60);
    -- Soon, and behind all rows that are being delivered while this waits for the table.
    start bigint := now + 5;
    until bigint;
    bounds int8range[];
    ahead bigint;
    old record;
begin
    dropped := 0;
    of_others := '{}';
    too_large := coalesce(pg_relation_size('outbox_history_rest') > max_bytes, false);
    -- The following locks the table exclusively, and while it waits for a reader, every settlement
    -- waits behind it. The next round will do.
    perform set_config('lock_timeout', '100ms', true);
    if not pg_try_advisory_xact_lock('outbox_history'::regclass::oid::integer, 0) then
        return;
    end if;
    select coalesce(array_agg(int8range(split_part(c.relname, '_', 3)::bigint, split_part(c.relname, '_', 4)::bigint)), '{}') into bounds
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'outbox_history'::regclass and c.relname ~ '^outbox_history_\d+_\d+$';
    while start <= now + 2 * span and not too_large loop
        -- A clock that was ahead for a while may have left some partitions far in the future: those
        -- are skipped.
        select max(upper(b)) filter (where b @> start), min(lower(b)) filter (where lower(b) > start) into until, ahead from unnest(bounds) b;
        if until is null then
            until := least(start + span, ahead);
            begin
                execute format('create table outbox_history_%s_%s partition of outbox_history for values from (%s) to (%s)',
                               start, until, start * 1000000, until * 1000000);
            exception when check_violation then
                -- Rows that were delivered in that time by such a clock are in the default one, and
                -- stay there.
                null;
            end;
        end if;
        start := until;
    end loop;
    for old in
        select c.relname, c.reltuples
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'outbox_history'::regclass and c.relname ~ '^outbox_history_\d+_\d+$'
          and split_part(c.relname, '_', 4)::bigint < now - kept / 1000000
    loop
        begin
            execute format('drop table %I', old.relname);
            dropped := dropped + greatest(old.reltuples::bigint, 0);
        exception when insufficient_privilege then
            of_others := of_others || old.relname::text;
        end;
    end loop;
end $$;

-- Every function, those of the earlier migrations too, finds the tables of this schema, whoever
-- calls it: `from current` keeps "$user" unchanged, and that is another schema for another role.
do $$
declare
    made record;
begin
    for made in
        select p.oid::regprocedure as name, n.nspname as home
        from pg_proc p
        join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = current_schema() and starts_with(p.proname, 'outbox_') and p.proconfig is not null
    loop
        execute format('alter function %s set search_path to %I', made.name, made.home);
    end loop;
end $$;

insert into outbox_schema (version, name) values (4, 'operate');
