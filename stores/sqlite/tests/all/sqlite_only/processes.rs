//! Several processes on one file: this test binary starts itself again as writers and as relays.
//!
//! Two writers append to the same keys at once; the relay that delivers them is killed; two more
//! writers append, and two other relays take over and share the buckets. The output of the relays
//! models the messages that a broker would receive.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outbox_contract::backend::{FetchRequest, FetchedRow, RelayId};
use outbox_contract::{Route, Store, StoreErrorKind, Transactional};
use outbox_store_sqlite::SqliteStore;

use super::support::{lease_request, message};

const ROLE: &str = "OUTBOX_TEST_ROLE";
const FILE: &str = "OUTBOX_TEST_FILE";
const WRITERS: usize = 4;
const TRANSACTIONS: usize = 75;
const KEYS: usize = 5;
const LEASE: Duration = Duration::from_millis(1_500);

#[test]
fn processes_on_one_file_lose_nothing_and_keep_order() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("outbox.db");
    let writers = |numbers: std::ops::Range<usize>| -> Vec<Child> {
        numbers.map(|number| start(&format!("writer {number}"), &file)).collect()
    };
    // The file is not migrated: all of them migrate it, at once.
    let before = writers(0..2);
    let mut killed = start("relay", &file);
    let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
    let mut delivered: Vec<String> =
        (0..50).map(|_| lines.next().expect("it goes on as long as writers are missing").unwrap()).collect();
    killed.kill().unwrap();
    // Output that it had written before it was killed counts too.
    delivered.extend(lines.map_while(Result::ok));
    killed.wait().unwrap();

    let behind = writers(2..WRITERS);
    let (mut second, mut third) = (start("relay", &file), start("relay", &file));
    let mut from_third = third.stdout.take().unwrap();
    let mut from_second = second.stdout.take().unwrap();
    let reader = std::thread::spawn(move || read_all(&mut from_third));
    let others = read_all(&mut from_second);
    let last = reader.join().unwrap();
    for mut child in before.into_iter().chain(behind).chain([second, third]) {
        assert!(child.wait().unwrap().success());
    }
    assert_in_order(&delivered, &others, &last);
}

fn read_all(from: &mut impl std::io::Read) -> Vec<String> {
    BufReader::new(from).lines().map_while(Result::ok).collect()
}

fn start(role: &str, file: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sqlite_only::processes::one_of_several_processes",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, role)
        .env(FILE, file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Deliveries of three relays, each in its own order: by key, every message once or more, and
/// merged by the position that each carries, the sequence of each writer ascends.
fn assert_in_order(first: &[String], second: &[String], third: &[String]) {
    let mut seen: HashMap<String, HashSet<i64>> = HashMap::new();
    let mut texts: HashMap<i64, String> = HashMap::new();
    for deliveries in [first, second, third] {
        let mut last: HashMap<String, i64> = HashMap::new();
        for line in deliveries.iter().filter_map(|line| line.strip_prefix("delivered ")) {
            let [key, position, text] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
            let position: i64 = position.parse().unwrap();
            let before = last.insert(key.to_owned(), position).unwrap_or_default();
            assert!(before < position, "one relay delivered {position} of {key} after {before}");
            seen.entry(key.to_owned()).or_default().insert(position);
            let other = texts.insert(position, text.to_owned());
            assert!(other.is_none_or(|other| other == text), "position {position} came back");
        }
    }
    assert_eq!(seen.len(), KEYS);
    let mut total = 0;
    for positions in seen.values() {
        let mut positions: Vec<_> = positions.iter().copied().collect();
        positions.sort_unstable();
        total += positions.len();
        let mut last: HashMap<&str, usize> = HashMap::new();
        for position in positions {
            let (writer, number) = texts[&position].split_once('/').unwrap();
            let number: usize = number.parse().unwrap();
            if let Some(before) = last.insert(writer, number) {
                assert!(before < number, "{writer}: {before} then {number}");
            }
        }
    }
    assert_eq!(total, WRITERS * TRANSACTIONS, "nothing is lost");
}

/// Not a test by itself: the work of the processes of the test above. Without their environment it
/// does nothing.
#[test]
fn one_of_several_processes() {
    let (Ok(role), Ok(file)) = (std::env::var(ROLE), std::env::var(FILE)) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(&file).await.unwrap();
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        match role.split_once(' ') {
            Some((_, number)) => write(&store, number).await,
            None => deliver(&store).await,
        }
    });
}

async fn write(store: &SqliteStore, writer: &str) {
    for number in 0..TRANSACTIONS {
        let mut tx = store.begin().await.unwrap();
        let message = message(&format!("key-{}", number % KEYS), &format!("writer-{writer}/{number}"));
        store.append(&mut tx, &[message.into()]).await.unwrap();
        store.commit(tx).await.into_result().unwrap();
        tokio::task::yield_now().await;
    }
}

/// A minimal relay: owns its share, reads, prints, settles, until everything has arrived and is
/// gone.
async fn deliver(store: &SqliteStore) {
    let relay = RelayId::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    let all = i64::try_from(WRITERS * TRANSACTIONS).unwrap();
    let mut out = std::io::stdout();
    // The harness has written the name of the test to this line.
    writeln!(out).unwrap();
    loop {
        assert!(Instant::now() < deadline, "the relay did not come to its end");
        let asked = Instant::now();
        let mut request = lease_request(relay);
        request.lasts = LEASE;
        let leased = match store.lease(&request).await {
            Ok(leased) => leased,
            Err(error) if error.kind() == StoreErrorKind::Unavailable => continue,
            Err(error) => panic!("{error}"),
        };
        // Surplus goes back at once: nothing is in flight here.
        let (kept, surplus) = leased.leases.split_at(leased.leases.len().min(leased.fair_share));
        if !surplus.is_empty() {
            store.give_back(relay, &Route::default(), surplus, &Default::default(), false).await.unwrap();
        }
        let buckets = kept.iter().map(|lease| lease.bucket).collect();
        let mut request = FetchRequest::new(Route::default(), relay, buckets);
        request.limit = 10;
        let fetched = store.fetch(&request).await.unwrap();
        let mut rows = Vec::new();
        for row in &fetched.rows {
            let FetchedRow::Message(stored) = row else { panic!("{row:?}") };
            if asked.elapsed() > LEASE / 2 {
                break;
            }
            let message = &stored.message;
            let text = std::str::from_utf8(&message.payload).unwrap();
            writeln!(out, "delivered {} {} {text}", message.order_key(), stored.position).unwrap();
            rows.push(stored.row());
        }
        out.flush().unwrap();
        store.settle(&Route::default(), &rows).await.unwrap();
        let last: (i64, i64) = sqlx::query_as(
            "select coalesce((select seq from sqlite_sequence where name = 'outbox_message'), 0),
                    (select count(*) from outbox_message)",
        )
        .fetch_one(store.pool())
        .await
        .unwrap();
        if last == (all, 0) {
            store.give_back(relay, &Route::default(), kept, &Default::default(), true).await.unwrap();
            return;
        }
    }
}
