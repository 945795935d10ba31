//! One key, in a transaction: its state, and what is parked behind it.

use outbox_contract::{KeyId, Route};
use sqlx::Row;
use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection};
use sqlx::query::Query;

use crate::sql;

/// The most messages that one transaction discards: a relay that parks another one behind them waits for no longer than that takes.
pub(crate) const MAX_DISCARDED: u64 = 1_000;

/// One key, in a transaction.
pub(crate) struct KeyIn<'a> {
    pub(crate) connection: &'a mut MySqlConnection,
    pub(crate) route: &'a Route,
    pub(crate) key: &'a KeyId,
    pub(crate) now: i64,
    /// The number of the key's next state, should there be one.
    pub(crate) next_version: i64,
}

/// A failing key's row.
pub(crate) struct KeyState {
    pub(crate) version: i64,
    pub(crate) held: bool,
    pub(crate) failing: Option<Vec<u8>>,
}

/// A statement with values.
pub(crate) type Bound<'q> = Query<'q, MySql, MySqlArguments>;

impl KeyIn<'_> {
    /// The key's row, where it has one, locked until the transaction ends.
    pub(crate) async fn state(&mut self) -> Result<Option<KeyState>, sqlx::Error> {
        let query = self.bind_key(sqlx::query(sql::KEY_STATE));
        let Some(row) = query.fetch_optional(&mut *self.connection).await? else { return Ok(None) };
        Ok(Some(KeyState {
            version: row.try_get_unchecked(0)?,
            held: row.try_get_unchecked::<i64, _>(1)? != 0,
            failing: row.try_get_unchecked(2)?,
        }))
    }

    /// The id of the first parked message.
    pub(crate) async fn first_parked(&mut self) -> Result<Option<Vec<u8>>, sqlx::Error> {
        let query = self.bind_key(sqlx::query(sql::PARKED_FIRST));
        let row = query.fetch_optional(&mut *self.connection).await?;
        row.map(|row| row.try_get_unchecked(0)).transpose()
    }

    /// Something was moved behind the key, which is as it was. On another node of a cluster an operator may have closed the key meanwhile: of two who
    /// change its row one is refused.
    pub(crate) async fn step(&mut self) -> Result<(), sqlx::Error> {
        self.execute(sqlx::query(sql::KEY_STEP)).await.map(|_| ())
    }

    /// The key is in its next state, otherwise as it was.
    pub(crate) async fn renumber(&mut self) -> Result<i64, sqlx::Error> {
        let query = sqlx::query(sql::KEY_VERSION).bind(self.next_version);
        self.execute(query).await?;
        Ok(self.next_version)
    }

    /// The key is in its next state, by a statement that takes version and time before the key.
    pub(crate) async fn change(&mut self, statement: &'static str) -> Result<i64, sqlx::Error> {
        let query = sqlx::query(statement).bind(self.next_version).bind(self.now);
        self.execute(query).await?;
        Ok(self.next_version)
    }

    /// The key flows again.
    pub(crate) async fn remove(&mut self) -> Result<(), sqlx::Error> {
        self.execute(sqlx::query(sql::KEY_REMOVE)).await.map(|_| ())
    }

    /// An operator holds the key.
    pub(crate) async fn hold(&mut self) -> Result<(), sqlx::Error> {
        let hold = self.bind_key(sqlx::query(sql::KEY_HOLD));
        let hold = hold.bind(self.key.bucket().0).bind(self.next_version).bind(self.now);
        hold.execute(&mut *self.connection).await.map(|_| ())
    }

    /// As many parked messages as one transaction moves become dead letters. Says how many. When they were the last the key flows again; until then it is
    /// held, so that none of the others goes out.
    pub(crate) async fn discard(&mut self) -> Result<u64, sqlx::Error> {
        let most = i64::try_from(MAX_DISCARDED).unwrap_or(i64::MAX);
        let discarded = self.parked_to_dead("discarded", most).await?;
        if discarded < MAX_DISCARDED {
            self.remove().await?;
        } else {
            self.hold().await?;
            self.change(sql::KEY_NEXT).await?;
        }
        Ok(discarded)
    }

    /// The first so many parked messages of the key become dead letters. Says how many.
    pub(crate) async fn parked_to_dead(
        &mut self,
        reason: &'static str,
        most: i64,
    ) -> Result<u64, sqlx::Error> {
        let bury = sqlx::query(sql::DISCARD).bind(reason.as_bytes()).bind(self.now);
        let bury = self.bind_key(bury).bind(most);
        let buried = bury.execute(&mut *self.connection).await?.rows_affected();
        let remove = self.bind_key(sqlx::query(sql::PARKED_REMOVE)).bind(most);
        remove.execute(&mut *self.connection).await?;
        Ok(buried)
    }

    /// Runs a statement whose next three values name the key, and are the last. Says how many rows.
    pub(crate) async fn execute(&mut self, query: Bound<'_>) -> Result<u64, sqlx::Error> {
        Ok(self.bind_key(query).execute(&mut *self.connection).await?.rows_affected())
    }

    /// The next three values of a statement name the key.
    pub(crate) fn bind_key<'q>(&self, query: Bound<'q>) -> Bound<'q> {
        query
            .bind(self.route.as_str().as_bytes().to_vec())
            .bind(self.key.topic.as_str().as_bytes().to_vec())
            .bind(self.key.key.as_str().as_bytes().to_vec())
    }
}

/// Takes numbers for the next states of so many keys; gives the first of them. In a statement of its own: whoever changes keys holds no lock that
/// others who change other keys want. None comes back, though the key be closed and opened again.
pub(crate) async fn take_versions(
    connection: &mut MySqlConnection,
    count: usize,
) -> Result<i64, sqlx::Error> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let taken = sqlx::query(sql::KEY_VERSIONS).bind(count).execute(connection).await?;
    let last = i64::try_from(taken.last_insert_id()).unwrap_or(i64::MAX);
    Ok(last - count + 1)
}
