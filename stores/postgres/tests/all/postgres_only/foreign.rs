//! Programs in other languages: the function, plain INSERT, and invalid rows.

use std::process::Command;

use outbox_contract::admin::{Edit, Filter};
use outbox_contract::backend::{
    Bucket, BucketSet, FetchRequest, FetchedRow, KeyTransition, RelayId, Step, Transitioned,
};
use outbox_contract::{Admin, AdminExt, Failure, Key, Route, Store, StoreErrorKind};
use outbox_servers::skip;

use super::support::{Fixture, append, due_request, fetch, lease, message, messages, relay};

#[tokio::test]
async fn a_function_appends_from_psql() {
    let Some(fixture) = Fixture::new().await else { return };
    let id = fixture.server.query(
        &fixture.url,
        r#"select outbox_append(topic => 'orders', key => 'order-1', event_type => 'order.placed',
            payload => '{"total_cents":4200}', headers => '{"tenant":"acme"}', schema_version => 2)"#,
    );
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    assert_eq!(read.len(), 1);
    let told = &read[0].message;
    assert_eq!(told.id.to_string(), id.trim());
    assert_eq!(told.key.as_ref().unwrap().as_str(), "order-1");
    assert_eq!(&told.payload[..], br#"{"total_cents":4200}"#);
    assert_eq!(told.headers.get("tenant"), Some("acme"));
    assert_eq!((told.schema_version, &*told.content_type), (2, "application/json"));
}

#[tokio::test]
async fn what_a_function_schedules_comes_when_it_is_due() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture
        .run("select outbox_append(topic => 'orders', event_type => 'x', due_at => now() - interval '1 second')")
        .await;
    fixture
        .run("select outbox_append_bytes('orders', 'x', '\\x00ff', due_at => now() + interval '1 year')")
        .await;
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 0);
    let done = fixture.store.maintain(100).await.unwrap();
    assert_eq!(done.promoted, 1);
    assert!(done.next_due.is_some());
}

/// A rollback of the program's transaction removes its message.
#[tokio::test]
async fn a_function_appends_in_the_callers_transaction() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run("begin; select outbox_append('orders', 'x'); rollback").await;
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 0);
}

/// A listing of the page of the book, by its language.
fn listing(language: &str, begins: &str) -> &'static str {
    let page = include_str!("../../../../../book/src/postgres.md");
    let fence = format!("```{language}\n");
    let mut listings =
        page.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    listings.find(|listing| listing.starts_with(begins)).expect("the page has such a listing")
}

/// Messages that each listing of the page writes: JSON by the function and by INSERT, bytes by
/// the function.
async fn assert_listed_messages(fixture: &Fixture) {
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    let types: Vec<&str> = read.iter().map(|stored| &*stored.message.event_type).collect();
    assert_eq!(types, ["order.placed", "order.paid", "order.scanned"]);
    for stored in &read[..2] {
        assert_eq!(&*stored.message.content_type, "application/json");
        let told: serde_json::Value = serde_json::from_slice(&stored.message.payload).expect("it is JSON");
        assert_eq!(told, serde_json::json!({ "path": "C:\\dir", "city": "Zürich" }));
    }
    assert_eq!(&*read[2].message.content_type, "application/octet-stream");
    assert_eq!(&read[2].message.payload[..], [0x00, 0x5c, 0xff]);
}

/// Runs a listing, unless its requirements are not on this machine: `lacks` is its output then.
async fn run_listing(mut command: Command, lacks: &str) {
    let Some(fixture) = Fixture::new().await else { return };
    match command.env("DATABASE_URL", &fixture.url).output() {
        Ok(said) if said.status.success() => assert_listed_messages(&fixture).await,
        Ok(said) if String::from_utf8_lossy(&said.stderr).contains(lacks) => {
            skip(&format!("{command:?} has no driver"));
        }
        Ok(said) => panic!("{}", String::from_utf8_lossy(&said.stderr)),
        Err(error) => skip(&format!("there is no {command:?}: {error}")),
    }
}

#[tokio::test]
async fn the_listing_in_sql_is_right() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.server.query(&fixture.url, listing("sql", "begin;"));
    assert_listed_messages(&fixture).await;
}

#[tokio::test]
async fn the_listing_in_python_is_right() {
    let mut python = with_driver("python3", "usr/lib/python3/dist-packages/psycopg2");
    python.arg("-c").arg(listing("python", "import"));
    run_listing(python, "No module named").await;
}

#[tokio::test]
async fn the_listing_in_node_is_right() {
    let mut node = with_driver("node", "usr/share/nodejs/pg");
    node.arg("-e").arg(listing("js", "const"));
    run_listing(node, "Cannot find module").await;
}

/// A program of the tree of prepared servers, if its driver is there; else the machine's own.
fn with_driver(program: &str, driver: &str) -> Command {
    let tree = std::env::var_os("OUTBOX_SERVERS_DIR").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers"),
        std::path::PathBuf::from,
    );
    let tree = tree.join("bookworm");
    if !tree.join(driver).exists() {
        return Command::new(program);
    }
    let mut command = Command::new("chroot");
    // Path of Debian's Node modules.
    command.arg(tree).arg(program).env("NODE_PATH", "/usr/share/nodejs");
    command
}

/// The function accepts any type that a driver gives its parameter.
#[tokio::test]
async fn the_function_takes_a_payload_of_every_type() {
    let Some(fixture) = Fixture::new().await else { return };
    for payload in ["'[1]'", "'[1]'::text", "'[1]'::varchar", "'[1]'::json", "'[1]'::jsonb", "'[1]'::bytea"] {
        fixture.run(&format!("select outbox_append('orders', 'x', {payload}, key => 'a')")).await;
    }
    fixture.run("select outbox_append('orders', 'x', null, key => 'a')").await;
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    let payloads: Vec<&[u8]> = read.iter().map(|stored| &stored.message.payload[..]).collect();
    assert_eq!(payloads, [&b"[1]"[..], b"[1]", b"[1]", b"[1]", b"[1]", b"[1]", b""]);
}

/// JDBC sends each text as `varchar`, and by the book headers with a cast.
#[tokio::test]
async fn the_function_takes_the_types_of_jdbc() {
    let Some(fixture) = Fixture::new().await else { return };
    let call = |headers: &str| {
        format!(
            "select outbox_append(topic => 'orders'::varchar, key => 'a'::varchar, event_type => 'x'::varchar, \
             payload => '[1]'::varchar, schema_version => 2::integer, id => gen_random_uuid(), headers => {headers})"
        )
    };
    fixture.run(&call("'{\"tenant\":\"acme\"}'::varchar::jsonb")).await;
    let mut connection = fixture.connection().await;
    let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(call("'{}'::varchar"))).execute(&mut connection).await;
    assert!(refused.unwrap_err().to_string().contains("outbox_append"), "what the book says of it");
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    assert_eq!((read.len(), read[0].message.headers.get("tenant")), (1, Some("acme")));
}

/// Attributes of `CloudEvents` have no columns of their own.
#[tokio::test]
async fn headers_say_the_attributes_of_a_message() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture
        .run(
            r#"select outbox_append('customers', 'customer.deleted', key => 'c-1',
               headers => '{"ce-subject":"line-1","ce-tenantid":"acme","ce-tombstone":"true"}')"#,
        )
        .await;
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    let message = &read[0].message;
    assert_eq!((message.subject(), message.extension("tenantid")), (Some("line-1"), Some("acme")));
    assert!(message.is_tombstone());
}

#[tokio::test]
async fn what_could_never_be_a_message_is_refused_with_its_name() {
    let Some(fixture) = Fixture::new().await else { return };
    for (statement, says) in [
        ("insert into outbox_message (topic, event_type) values ('', 'x')", "topic has 0 bytes"),
        (
            "insert into outbox_message (topic, event_type) values (repeat('t', 250), 'x')",
            "topic has 250 bytes",
        ),
        ("insert into outbox_message (topic, event_type, key) values ('t', 'x', '')", "key has 0 bytes"),
        (
            "insert into outbox_message (topic, event_type) values ('t', repeat('x', 256))",
            "event_type has 256 bytes",
        ),
        (
            "insert into outbox_message (topic, event_type, schema_version) values ('t', 'x', 0)",
            "schema_version is 0",
        ),
        (
            "insert into outbox_message (topic, event_type, headers) values ('t', 'x', '[]')",
            "headers are not",
        ),
        ("insert into outbox_message (topic, event_type, route) values ('t', 'x', '')", "route has 0 bytes"),
        ("select outbox_append('t', 'x', key => E'a\nb')", "key has the control character U+000A"),
        ("select outbox_append(E't\x7f', 'x')", "topic has the control character U+007F"),
        ("select outbox_append('t', E'x\t')", "event_type has the control character U+0009"),
        (
            "select outbox_append('t', 'x', content_type => E'a\\u0085')",
            "content_type has the control character",
        ),
        ("select outbox_append('t', 'x', route => E'r\n')", "route has the control character"),
        ("select outbox_append('t', 'x', key => repeat('ü', 128))", "key has 256 bytes"),
        ("select outbox_append('t', 'x', schema_version => 4294967296)", "schema_version is 4294967296"),
        ("select outbox_append('t', 'x', occurred_at => '12000-01-01')", "occurred_at is"),
        (
            "select outbox_append('t', 'x', headers => '{\"a\":\"b\\n\"}')",
            "headers: the value of a has the control",
        ),
        ("select outbox_append('t', 'x', headers => '{\"\":\"b\"}')", "has 0 bytes"),
        (
            "insert into outbox_message (topic, event_type, headers) values ('t', 'x', convert_to('{', 'UTF8'))",
            "headers are not a JSON object of strings",
        ),
        (
            "insert into outbox_message (topic, event_type, headers) values ('t', 'x', '\\xff')",
            "headers are not a JSON object of strings",
        ),
        ("select outbox_append('t', 'x', key => E'a\nb', due_at => now())", "key has the control character"),
        ("select outbox_append('t', 'x', headers => '{\"a\":1}')", "headers are not"),
        ("select outbox_append('t', 'x', headers => '[]', due_at => now())", "headers are not"),
        ("select outbox_append('', 'x', due_at => now())", "topic has 0 bytes"),
        ("select outbox_append(null, 'x')", "topic is null"),
    ] {
        let mut connection = fixture.connection().await;
        let refused =
            sqlx::raw_sql(statement).execute(&mut connection).await.expect_err(statement).to_string();
        assert!(refused.contains(says), "{statement}: {refused}");
    }
}

/// A program that gives a position bypasses the trigger: its row is read leniently, and becomes a
/// dead letter with the reason.
#[tokio::test]
async fn a_row_that_is_no_message_is_known_as_malformed_and_holds_up_no_other() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture
        .run(
            "insert into outbox_message (position, bucket, topic, key, event_type) \
             values (nextval('outbox_message_position'), 62, 'orders', 'b', 'x')",
        )
        .await;
    append(&fixture.store, [message("a")]).await;
    let relay = relay(&fixture.store).await;
    let read = fetch(&fixture.store, relay).await;
    let [FetchedRow::Malformed(waiting, reason), FetchedRow::Message(_)] = &read.rows[..] else {
        panic!("{read:?}")
    };
    assert_eq!(waiting.key.key.as_str(), "b");
    assert!(reason.contains("its bucket is 62"), "{reason}");
}

/// The bucket in a row may be invalid: the row is still read, by the owner of the bucket that it
/// maps to.
#[tokio::test]
async fn a_row_whose_bucket_is_none_is_known_as_malformed_by_one_relay_and_can_be_buried() {
    let Some(fixture) = Fixture::new().await else { return };
    append(&fixture.store, [message("a")]).await;
    for bucket in [300, -1] {
        fixture
            .run(&format!(
                "insert into outbox_message (position, bucket, topic, key, event_type) \
                 values (nextval('outbox_message_position'), {bucket}, 'orders', 'b', 'x')"
            ))
            .await;
    }
    let relay = RelayId::new();
    let leases = lease(&fixture.store, relay).await.leases;
    let read = fetch(&fixture.store, relay).await;
    let [FetchedRow::Message(_), malformed @ ..] = &read.rows[..] else { panic!("{read:?}") };
    assert_eq!(malformed.len(), 2, "{read:?}");
    for (row, (is, taken_for)) in malformed.iter().zip([(300, Bucket(44)), (-1, Bucket(255))]) {
        let FetchedRow::Malformed(waiting, reason) = row else { panic!("{row:?}") };
        assert!(reason.contains(&format!("its bucket is {is}")), "{reason}");
        assert_eq!(waiting.bucket, taken_for);
        for buckets in
            [BucketSet::from_iter([taken_for]), BucketSet::ALL.without(&BucketSet::from_iter([taken_for]))]
        {
            let mine = buckets.contains(taken_for);
            let rows =
                fixture.store.fetch(&FetchRequest::new(Route::default(), relay, buckets)).await.unwrap().rows;
            assert_eq!(rows.iter().any(|row| row.position() == waiting.at.position), mine);
        }
        let failure = Failure::new("malformed", reason);
        let bury = KeyTransition::new(
            Route::default(),
            relay,
            (waiting.bucket, leases.iter().find(|lease| lease.bucket == taken_for).unwrap().epoch),
            waiting.key.clone(),
            None,
            Step::Bury {
                discard: false,
                row: waiting.at,
                reason: "malformed",
                attempts: 0,
                first: failure.clone(),
                last: failure,
            },
        );
        assert!(matches!(fixture.store.transition(&[bury]).await.unwrap()[..], [Transitioned::Done(_)]));
    }
    assert_eq!(fixture.store.requeue(&Filter::all_routes()).await.unwrap(), 2);
    assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), 3);
}

/// The names of such a row may be longer than an entry of an index.
#[tokio::test]
async fn a_row_with_names_of_any_length_can_be_buried() {
    let Some(fixture) = Fixture::new().await else { return };
    // Digests, so that it does not get shorter by compression.
    let long = "(select string_agg(md5(n::text || 'name'), '') from generate_series(1, 500) n)";
    for (topic, key) in [("'orders'", long), (long, "'b'"), (long, long), (long, "null")] {
        fixture
            .run(&format!(
                "insert into outbox_message (position, bucket, topic, key, event_type) \
                 values (nextval('outbox_message_position'), 62, {topic}, {key}, 'x')"
            ))
            .await;
    }
    let relay = RelayId::new();
    let leases = lease(&fixture.store, relay).await.leases;
    let read = fetch(&fixture.store, relay).await;
    assert_eq!(read.rows.len(), 4, "{read:?}");
    for row in &read.rows {
        let FetchedRow::Malformed(waiting, reason) = row else { panic!("{row:?}") };
        let failure = || Failure::new("malformed", reason);
        let (row, first, last) = (waiting.at, failure(), failure());
        let (bucket, key) = (waiting.bucket, waiting.key.clone());
        let epoch = leases.iter().find(|lease| lease.bucket == bucket).unwrap().epoch;
        let step = Step::Bury { discard: false, row, reason: "malformed", attempts: 0, first, last };
        let bury = KeyTransition::new(Route::default(), relay, (bucket, epoch), key, None, step);
        assert!(matches!(fixture.store.transition(&[bury]).await.unwrap()[..], [Transitioned::Done(_)]));
    }
    assert_eq!(fetch(&fixture.store, relay).await.rows.len(), 0);
    // The key is kept as it is; by what it is found is cut.
    let kept =
        "select count(*) from outbox_dead where octet_length(key) = 16000 and octet_length(order_key) = 255";
    assert_eq!(fixture.number(kept).await, 2);
}

/// Its key waits for an operator, and delays no other key.
#[tokio::test]
async fn a_parked_row_that_is_no_message_takes_no_room_from_other_keys() {
    let Some(fixture) = Fixture::new().await else { return };
    let park = "
        insert into outbox_key (route, topic, key, bucket, version, next_attempt_at, since)
        select 'default', 'orders', k, outbox_bucket('orders', k), at, at, 0 from (values ('a', 1), ('b', 2), ('c', 3)) v(k, at);
        insert into outbox_parked (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload,
                                   occurred_at, appended_at, parked_at)
        select at, gen_random_uuid(), 'default', outbox_bucket('orders', k), 'orders', k, k, 'x', 1, 'text/plain', head::bytea,
               convert_to(repeat('x', 1000), 'UTF8'), 0, 0, 0
        from (values ('a', 1, '[1]'), ('b', 2, ''), ('c', 3, '')) v(k, at, head)";
    fixture.run(park).await;
    let mut request = due_request(relay(&fixture.store).await);
    for bytes in [1, 1_500] {
        request.bytes = bytes;
        let due = fixture.store.due(&request).await.unwrap();
        let keys: Vec<_> = due.keys.iter().map(|due| due.key.key.as_str()).collect();
        assert_eq!((keys, due.next), (vec!["b"], Some(std::time::Duration::ZERO)), "{bytes} bytes");
    }
}

/// A malformed message that could never be sent is sent when it is corrected.
#[tokio::test]
async fn a_dead_letter_that_was_no_message_is_corrected() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture
        .run(
            "insert into outbox_dead (position, occurred_at, appended_at, died_at, schema_version, attempts, id, bucket, route, topic, key, \
             order_key, event_type, content_type, headers, payload, reason) \
             values (1, 1, 1, 1, 1, 1, gen_random_uuid(), 7, 'default', 'orders', E'a\\nb', E'a\\nb', 'x', 'text/plain', '', '', 'malformed')",
        )
        .await;
    let refused = fixture.store.requeue_edited(&Filter::all_routes(), &Edit::default()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    assert!(refused.to_string().contains("the key") && refused.to_string().contains("U+000A"), "{refused}");
    let edit = Edit { key: Some(Some(Key::new("a").unwrap())), ..Edit::default() };
    let id = fixture.store.requeue_edited(&Filter::all_routes(), &edit).await.unwrap();
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    assert_eq!((read.len(), Some(read[0].message.id)), (1, id));
    assert_eq!(read[0].message.key.as_ref().unwrap().as_str(), "a");
}
