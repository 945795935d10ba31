-- Appending, version 2: the order of a key, for every writer.
--
-- Writers of one key are serialized from append to commit, and the position is taken under that
-- lock, so position order is commit order. One rule for all of them: first the buckets, in
-- ascending order, shared, or exclusive for more than 256 keys at once; then, where the buckets are
-- shared, the keys, in ascending order, exclusive; only then nextval. All are advisory locks of the
-- transaction.
--
-- Every function has the schema in which it was created as its search_path, so that it finds its
-- own tables whoever calls it.

-- Input of the bucket and the lock of a key: SHA-256 over topic, NUL and key. A message without a
-- key uses its id.
create function outbox_hash(topic text, key text) returns bytea
    language sql stable parallel safe
    as $$ select sha256(convert_to(topic, 'UTF8') || '\x00'::bytea || convert_to(key, 'UTF8')) $$;

-- The bucket: its first byte.
create function outbox_bucket(topic text, key text) returns smallint
    language sql stable parallel safe set search_path from current
    as $$ select get_byte(outbox_hash(topic, key), 0)::smallint $$;

-- The number of a key's lock: its first eight bytes.
create function outbox_lock_number(hash bytea) returns bigint
    language sql immutable parallel safe
    as $$ select ('x' || encode(substr(hash, 1, 8), 'hex'))::bit(64)::bigint $$;

-- Locks keys for an append, by their hashes.
create function outbox_lock(hashes bytea[]) returns void
    language plpgsql set search_path from current
    as $$
declare
    outbox constant integer := 'outbox_message'::regclass::oid::integer;
    many boolean := (select count(distinct hash) > 256 from unnest(hashes) hash);
    at record;
begin
    for at in select distinct get_byte(hash, 0) as bucket from unnest(hashes) hash order by 1 loop
        if many then
            perform pg_advisory_xact_lock(outbox, at.bucket);
        else
            perform pg_advisory_xact_lock_shared(outbox, at.bucket);
        end if;
    end loop;
    if not many then
        for at in select distinct outbox_lock_number(hash) as number from unnest(hashes) hash order by 1 loop
            perform pg_advisory_xact_lock(at.number # (outbox::bigint << 32));
        end loop;
    end if;
end $$;

-- Like outbox_lock, for one key, but does not wait: false if another transaction writes to it.
create function outbox_try_lock(hash bytea) returns boolean
    language plpgsql set search_path from current
    as $$
declare
    outbox constant integer := 'outbox_message'::regclass::oid::integer;
begin
    return pg_try_advisory_xact_lock_shared(outbox, get_byte(hash, 0))
       and pg_try_advisory_xact_lock(outbox_lock_number(hash) # (outbox::bigint << 32));
end $$;

-- Refuses an invalid message, with the name of the column and the rule.
create function outbox_refuse(what text, remedy text) returns void
    language plpgsql
    as $$
begin
    raise exception using errcode = 'check_violation', message = 'outbox: ' || what, hint = remedy;
end $$;

-- A name: of a limited number of bytes, without control characters. Null is checked by the columns,
-- and a key may be null.
create function outbox_check_name(what text, value text, most integer, remedy text) returns void
    language plpgsql set search_path from current
    as $$
declare
    at integer;
begin
    if octet_length(value) not between 1 and most then
        perform outbox_refuse(what || ' has ' || octet_length(value) || ' bytes', 'give it 1 to ' || most || ' bytes' || remedy);
    end if;
    at := (select n from generate_series(1, length(value)) n where substr(value, n, 1) collate "C" ~ '[\x01-\x1f\x7f-\x9f]' limit 1);
    if at is not null then
        perform outbox_refuse(what || ' has the control character U+' || lpad(upper(to_hex(ascii(substr(value, at, 1)))), 4, '0') ||
                              ' as character ' || at, 'remove it');
    end if;
end $$;

-- Headers: nothing, or a JSON object of strings.
create function outbox_check_headers(headers bytea) returns void
    language plpgsql set search_path from current
    as $$
declare
    told jsonb;
    header record;
begin
    begin
        told := convert_from(headers, 'UTF8')::jsonb;
    exception when data_exception then
        perform outbox_refuse('headers are not a JSON object of strings: ' || sqlerrm, 'give the bytes of such an object, or none');
    end;
    if jsonb_typeof(told) <> 'object' or exists (select from jsonb_each(told) h where jsonb_typeof(h.value) <> 'string') then
        perform outbox_refuse('headers are not a JSON object of strings', 'give the bytes of such an object, or none');
    end if;
    for header in
        select h.key as name, h.value
        from jsonb_each_text(told) h
        where h.key collate "C" !~ '^[ -~]+$' or octet_length(h.key) > 255
           or h.value collate "C" !~ '^[ -~]*$' or octet_length(h.value) > 8192
    loop
        perform outbox_check_name('headers: the name "' || left(header.name, 64) || '"', header.name, 255, '');
        if header.value <> '' then
            perform outbox_check_name('headers: the value of ' || header.name, header.value, 8192, '');
        end if;
    end loop;
end $$;

-- Nearly every message passes by the first condition alone: names of printable ASCII.
create function outbox_check(route text, topic text, key text, event_type text, schema_version bigint, content_type text, headers bytea,
                             payload bytea, occurred_at bigint) returns void
    language plpgsql set search_path from current
    as $$
declare
    plain constant text collate "C" := '^[ -~]+$';
begin
    if topic is null then
        perform outbox_refuse('topic is null', 'give it 1 to 249 bytes');
    elsif event_type is null then
        perform outbox_refuse('event_type is null', 'give it 1 to 255 bytes');
    end if;
    if not (route collate "C" ~ plain and topic collate "C" ~ plain and coalesce(key, '-') collate "C" ~ plain
            and event_type collate "C" ~ plain and content_type collate "C" ~ plain
            and octet_length(route) <= 64 and octet_length(topic) <= 249 and coalesce(octet_length(key), 1) <= 255
            and octet_length(event_type) <= 255 and octet_length(content_type) <= 255) then
        perform outbox_check_name('route', route, 64, ', or leave it out');
        perform outbox_check_name('topic', topic, 249, '');
        perform outbox_check_name('key', key, 255, ', or null for none');
        perform outbox_check_name('event_type', event_type, 255, '');
        perform outbox_check_name('content_type', content_type, 255, ', or leave it out');
    end if;
    if schema_version not between 1 and 4294967295 then
        perform outbox_refuse('schema_version is ' || schema_version, 'versions count from 1, to 4294967295');
    elsif octet_length(payload) > 15728640 then
        perform outbox_refuse('payload has ' || octet_length(payload) || ' bytes', 'the most is 15728640; store the data elsewhere and send a reference');
    elsif occurred_at not between -62167219200000000 and 253402300799999999 then
        perform outbox_refuse('occurred_at is ' || occurred_at || ', outside of the years 0 to 9999', 'give microseconds since 1970');
    end if;
    if octet_length(headers) > 0 then
        perform outbox_check_headers(headers);
    end if;
end $$;

-- Plain INSERT: if the position is left out, the key is locked, the bucket computed and the
-- position taken here, in that order.
create function outbox_place() returns trigger
    language plpgsql set search_path from current
    as $$
declare
    hash bytea;
begin
    perform outbox_check(new.route, new.topic, new.key, new.event_type, new.schema_version, new.content_type, new.headers, new.payload,
                         new.occurred_at);
    hash := outbox_hash(new.topic, coalesce(new.key, new.id::text));
    new.bucket := get_byte(hash, 0);
    perform pg_advisory_xact_lock_shared(tg_relid::integer, new.bucket);
    perform pg_advisory_xact_lock(outbox_lock_number(hash) # (tg_relid::integer::bigint << 32));
    new.position := nextval('outbox_message_position');
    return new;
end $$;

create trigger outbox_message_place before insert on outbox_message
    for each row when (new.position is null) execute function outbox_place();

-- Scheduled messages are checked when they are written, by any program.
create function outbox_schedule_check() returns trigger
    language plpgsql set search_path from current
    as $$
begin
    perform outbox_check(new.route, new.topic, new.key, new.event_type, new.schema_version, new.content_type, new.headers, new.payload,
                         new.occurred_at);
    return new;
end $$;

create trigger outbox_scheduled_check before insert on outbox_scheduled
    for each row execute function outbox_schedule_check();

-- Appends a message in the caller's transaction, from any language; returns its id. With due_at it
-- joins its key then, else now.
--
--   select outbox_append(topic => 'orders', key => 'order-1', event_type => 'order.placed', payload => '{"total_cents":4200}');
create function outbox_append_bytes(topic text, event_type text, payload bytea default '', key text default null, headers jsonb default null,
                                    id uuid default gen_random_uuid(), route text default 'default', schema_version bigint default 1,
                                    content_type text default 'application/octet-stream', occurred_at timestamptz default clock_timestamp(),
                                    due_at timestamptz default null) returns uuid
    language plpgsql set search_path from current
    as $$
#variable_conflict use_variable
declare
    happened bigint := (date_part('epoch', occurred_at) * 1000000)::bigint;
    head bytea := case when headers is null or headers = '{}' then '' else convert_to(headers::text, 'UTF8') end;
begin
    if due_at is null then
        insert into outbox_message (id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
        values (id, route, topic, key, event_type, schema_version, content_type, head, coalesce(payload, ''), happened);
    else
        insert into outbox_scheduled (id, route, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at, due_at)
        values (id, route, topic, key, event_type, schema_version, content_type, head, coalesce(payload, ''), happened,
                (date_part('epoch', due_at) * 1000000)::bigint);
    end if;
    return id;
end $$;

-- The same, for a payload that is text: by default JSON.
create function outbox_append(topic text, event_type text, payload text default '', key text default null, headers jsonb default null,
                              id uuid default gen_random_uuid(), route text default 'default', schema_version bigint default 1,
                              content_type text default 'application/json', occurred_at timestamptz default clock_timestamp(),
                              due_at timestamptz default null) returns uuid
    language sql set search_path from current
    as $$
    select outbox_append_bytes(topic, event_type, convert_to(payload, 'UTF8'), key, headers, id, route, schema_version, content_type,
                               occurred_at, due_at)
$$;

-- And for one that a driver sends as bytes, or as JSON. Only the text can be left out, so that no call fits two of them; a literal without a type
-- is text.
create function outbox_append(topic text, event_type text, payload bytea, key text default null, headers jsonb default null,
                              id uuid default gen_random_uuid(), route text default 'default', schema_version bigint default 1,
                              content_type text default 'application/octet-stream', occurred_at timestamptz default clock_timestamp(),
                              due_at timestamptz default null) returns uuid
    language sql set search_path from current
    as $$
    select outbox_append_bytes(topic, event_type, payload, key, headers, id, route, schema_version, content_type, occurred_at, due_at)
$$;

create function outbox_append(topic text, event_type text, payload json, key text default null, headers jsonb default null,
                              id uuid default gen_random_uuid(), route text default 'default', schema_version bigint default 1,
                              content_type text default 'application/json', occurred_at timestamptz default clock_timestamp(),
                              due_at timestamptz default null) returns uuid
    language sql set search_path from current
    as $$
    select outbox_append_bytes(topic, event_type, convert_to(payload::text, 'UTF8'), key, headers, id, route, schema_version, content_type,
                               occurred_at, due_at)
$$;

create function outbox_append(topic text, event_type text, payload jsonb, key text default null, headers jsonb default null,
                              id uuid default gen_random_uuid(), route text default 'default', schema_version bigint default 1,
                              content_type text default 'application/json', occurred_at timestamptz default clock_timestamp(),
                              due_at timestamptz default null) returns uuid
    language sql set search_path from current
    as $$
    select outbox_append_bytes(topic, event_type, convert_to(payload::text, 'UTF8'), key, headers, id, route, schema_version, content_type,
                               occurred_at, due_at)
$$;

-- Appends scheduled messages that are due at an instant, in the order of their due time, then of
-- their scheduling; limited in messages, and to 256 keys. A key to which another transaction writes
-- is left for the next round, and its due messages make room for others (up to a hundred thousand
-- are skipped), so that no writer delays the others.
create function outbox_promote(most integer, now bigint) returns integer
    language plpgsql set search_path from current
    as $$
declare
    moved integer;
    page integer;
    walk bigint := 100000;
    walked bigint;
    at record;
    last_due bigint := -9223372036854775808;
    last_number bigint := 0;
    -- Locked keys, and keys to which another transaction writes.
    got bytea[] := '{}';
    busy bytea[] := '{}';
    chosen bigint[] := '{}';
begin
    -- One at a time: two rounds at once would take the same rows, and in another order.
    perform pg_advisory_xact_lock('outbox_scheduled'::regclass::oid::integer, 0);
    loop
        page := 0;
        walked := 0;
        for at in
            select l.*
            from (
                select s.due_at, s.number, outbox_hash(s.topic, coalesce(s.key, s.id::text)) as hash,
                       row_number() over (order by s.due_at, s.number) as place
                from outbox_scheduled s
                where s.due_at <= now and (s.due_at, s.number) > (last_due, last_number)
                order by s.due_at, s.number
                limit walk
            ) l
            where l.hash <> all(busy)
            order by l.due_at, l.number
            limit most
        loop
            page := page + 1;
            walked := at.place;
            last_due := at.due_at;
            last_number := at.number;
            if at.hash = any(got) then
                chosen := chosen || at.number;
            elsif at.hash <> all(busy) and cardinality(got) + cardinality(busy) < 256 then
                if outbox_try_lock(at.hash) then
                    got := got || at.hash;
                    chosen := chosen || at.number;
                else
                    busy := busy || at.hash;
                end if;
            end if;
            exit when cardinality(chosen) = most;
        end loop;
        walk := walk - walked;
        exit when page < most or walk <= 0 or cardinality(chosen) = most or cardinality(got) + cardinality(busy) = 256;
    end loop;
    -- A message that was canceled meanwhile no longer exists.
    with gone as (
        delete from outbox_scheduled s where s.number = any(chosen) returning s.*
    ), ordered as materialized (
        select g.*, outbox_bucket(g.topic, coalesce(g.key, g.id::text)) as bucket from gone g order by g.due_at, g.number
    ), appended as (
        insert into outbox_message
            (position, id, route, bucket, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
        select nextval('outbox_message_position'), o.id, o.route, o.bucket, o.topic, o.key, o.event_type, o.schema_version, o.content_type,
               o.headers, o.payload, o.occurred_at
        from ordered o
        returning 1
    )
    select count(*) into moved from appended;
    return moved;
end $$;

insert into outbox_schema (version, name) values (2, 'append');
