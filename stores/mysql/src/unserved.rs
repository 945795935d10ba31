//! Routes with messages that no relay serves: one step along a primary key, which begins with the
//! route, for each of them.
//!
//! Nothing of a route that is served is walked over, neither what waits there nor what is gone and,
//! for an old snapshot's sake, still there.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::backend::Unserved;
use sqlx::mysql::MySqlConnection;
use sqlx::{Executor, Row};

use crate::fetch::number;
use crate::lease::now;
use crate::sql;

/// Number of messages of an unserved route among which the oldest is looked for.
const LOOK: usize = 1_000;

/// Behind every name: no UTF-8 has such bytes.
const END: &[u8] = &[u8::MAX; 64];

pub(crate) async fn unserved(
    connection: &mut MySqlConnection,
    after: Duration,
    counting_limit: u32,
) -> Result<Vec<Unserved>, sqlx::Error> {
    let now = now(connection).await?;
    let served = connection.fetch_all(sql::UNSERVED_SERVED).await?;
    let served: BTreeSet<Vec<u8>> =
        served.iter().map(|row| row.try_get_unchecked(0)).collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    for (next, oldest) in
        [(sql::UNSERVED_NEXT, sql::UNSERVED_OLDEST), (sql::UNSERVED_NEXT_PARKED, sql::UNSERVED_OLDEST_PARKED)]
    {
        let (mut last, mut routes) = (Vec::new(), 0);
        for end in served.iter().map(Vec::as_slice).chain([END]) {
            while routes < Unserved::MOST {
                let row = sqlx::query(next).bind(&last).bind(end).fetch_optional(&mut *connection).await?;
                let Some(row) = row else { break };
                routes += 1;
                last = row.try_get_unchecked(0)?;
                let row =
                    sqlx::query(oldest).bind(&last).bind(number(LOOK)).fetch_one(&mut *connection).await?;
                // None: all of it is gone meanwhile.
                let oldest: Option<i64> = row.try_get_unchecked(0)?;
                found.extend(oldest.map(|oldest| (last.clone(), oldest)));
            }
            last = end.to_owned();
        }
    }
    let due = sqlx::query(sql::UNSERVED_DUE).bind(now).bind(counting_limit).fetch_all(connection).await?;
    for row in &due {
        let route: Vec<u8> = row.try_get_unchecked(0)?;
        if !served.contains(&route) {
            found.push((route, row.try_get_unchecked(1)?));
        }
    }
    let found = found.iter().map(|(route, since)| {
        let waited = u64::try_from(now.saturating_sub(*since)).unwrap_or_default();
        (String::from_utf8_lossy(route), Duration::from_micros(waited))
    });
    Ok(Unserved::gather(found, after))
}
