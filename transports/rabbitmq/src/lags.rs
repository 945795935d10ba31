//! Backlogs in the queues of a member, measured beside its deliveries.

use std::convert::Infallible;
use std::time::Duration;

use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use outbox_contract::backend::Lag;
use tokio::time::sleep;

use crate::connection::Connection;
use crate::error::Fault;
use crate::member::SharedMember;
use crate::topology::{Queue, Queues};

/// Interval of the questions: one for each queue.
const EVERY: Duration = Duration::from_secs(5);

/// Asks now and then, until the connection is over. What can't be asked is asked again: other parts
/// say what is wrong.
pub(crate) async fn watch(shared: &SharedMember, connection: &Connection, queues: &Queues) -> Infallible {
    let mut channel = None;
    loop {
        let mut lags = Vec::with_capacity(queues.len());
        for (queue, _) in queues.iter().filter(|(_, fault)| fault.is_none()) {
            match ask(connection, &mut channel, queue).await {
                Ok(ready) => {
                    let mine = shared.state().consumption.held(&queue.unit);
                    // Every member asks for every queue, and figures of members are added up: so
                    // the member that has a queue reports it. The broker does not say which one has
                    // it; that one holds deliveries while any wait.
                    if ready == 0 || mine > 0 {
                        lags.push(Lag::new(queue.unit.clone(), u64::from(ready).saturating_add(mine)));
                    }
                }
                Err(fault) => {
                    // The broker closes a channel with each refusal.
                    channel = None;
                    tracing::debug!(queue = queue.name.as_str(), %fault, "could not read the depth of a queue");
                }
            }
        }
        shared.state().lags = lags;
        sleep(EVERY).await;
    }
}

/// Returns the number of ready messages of a queue: those that no consumer was given.
async fn ask(connection: &Connection, kept: &mut Option<Channel>, queue: &Queue) -> Result<u32, Fault> {
    let channel = match kept.take() {
        Some(channel) => channel,
        None => connection.channel().await?,
    };
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let asked = channel.queue_declare(queue.name.clone(), options, FieldTable::default());
    let found = connection.answer(format!("queue {:?}", queue.name.as_str()), asked).await?;
    *kept = Some(channel);
    Ok(found.message_count())
}
