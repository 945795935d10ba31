//! Filling of an outbox, before its messages are relayed.

use outbox_contract::{Message, Outgoing, StoreError, Topic, Transactional};
use outbox_tests::on_store;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::bench::PAYLOAD;
use crate::child::{finished, ready, tell};

/// Messages to write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fill {
    pub(crate) store: String,
    pub(crate) topic: String,
    pub(crate) messages: u64,
    /// Number of keys, in turn.
    pub(crate) keys: u64,
}

impl Fill {
    pub(crate) async fn play(self) {
        if self.store.starts_with("postgres") {
            return self.generate().await;
        }
        on_store!(self.store, S => self.append(S::connect(&self.store).await).await)
    }

    /// Generates the rows in PostgreSQL, which takes a fraction of the time.
    async fn generate(&self) {
        let mut connection = PgConnection::connect(&self.store).await.expect("the database answers");
        let Self { topic, messages, keys, .. } = self;
        let insert = format!(
            "insert into outbox_message (position, bucket, topic, key, event_type, payload)
             select nextval('outbox_message_position'), outbox_bucket('{topic}', key), '{topic}', key, 'bench.made', {PAYLOAD}
             from (select n, 'key-' || n % {keys} as key from generate_series(1, {messages}) n) numbers"
        );
        ready().await;
        for statement in ["checkpoint", &insert, "analyze outbox_message"] {
            connection.execute(sqlx::raw_sql(AssertSqlSafe(statement))).await.expect("filled");
        }
        tell(&());
        finished().await;
    }

    async fn append<S: Transactional>(&self, store: Result<S, StoreError>) {
        let store = store.expect("the database answers");
        ready().await;
        let all: Vec<u64> = (0..self.messages).collect();
        for numbers in all.chunks(1_000) {
            let mut tx = store.begin().await.expect("begun");
            let messages: Vec<Outgoing> = numbers.iter().map(|number| self.made(*number)).collect();
            store.append(&mut tx, &messages).await.expect("appended");
            store.commit(tx).await.into_result().expect("committed");
        }
        tell(&());
        finished().await;
    }

    fn made(&self, number: u64) -> Outgoing {
        let topic = Topic::new(&*self.topic).expect("a valid name");
        let payload = format!("{:x<298}\"}}", format!("{{\"n\":{number},\"x\":\""));
        let message = Message::new(topic, "bench.made").expect("valid names").with_payload(payload);
        message.with_key(format!("key-{}", number % self.keys)).expect("a valid key").into()
    }
}
