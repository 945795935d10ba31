//! Publishing: what goes to which stream by which commands, and what became of it.

use std::collections::BTreeSet;

use outbox_contract::Topic;
use outbox_contract::backend::{Bucket, Outcomes, PublishBatch};
use redis::{Pipeline, Value};
use tokio::time::Instant;

use super::SharedTransport;
use crate::append::{Answer, Answers, Append, Way};
use crate::connection::{Connection, refusal};
use crate::error::Error;
use crate::publication::{self, Appended, StreamAppend};

impl SharedTransport {
    pub(super) async fn publish(&self, batch: &PublishBatch, outcomes: &Outcomes) -> Result<(), Error> {
        // First a connection: it tells how large a message may be.
        self.publishing.connection().await?;
        let topics: BTreeSet<&Topic> = batch.messages.iter().map(|stored| &stored.message.topic).collect();
        let units = self.topics.units(&self.publishing, &topics).await?;
        let mut appends = publication::plan(batch, &units, self.server.max_bytes(), outcomes);
        if appends.is_empty() {
            return Ok(());
        }
        let within = self.config.request_timeout;
        self.durability.check_recovered(&self.publishing, &self.routing.probe(), within).await?;
        // Again for a server that has lost its scripts, or a slot: it did nothing, and a new connection
        // gives the scripts to whoever has it. And for epochs that have changed: the last time, the
        // script appends whatever they are.
        for last in [false, false, true] {
            let mut connection = self.publishing.connection().await?;
            appends = self.append(&mut connection, batch, appends, outcomes, last).await?;
            if appends.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Sends the appends of a batch together; returns those that are to be sent again.
    async fn append(
        &self,
        connection: &mut Connection,
        batch: &PublishBatch,
        appends: Vec<StreamAppend>,
        outcomes: &Outcomes,
        last: bool,
    ) -> Result<Vec<StreamAppend>, Error> {
        let now = Instant::now();
        let mut pipeline = Pipeline::new();
        let mut asked = Vec::with_capacity(appends.len());
        for to in appends {
            let append = self.append_of(batch, to);
            let version = self.epochs.version(&append.key, &append.epochs, now);
            let way = if last { Way::Script } else { append.way(version, connection.transactions) };
            let commands = append.ask(&way, &connection.scripts, &mut pipeline);
            asked.push((append, way, commands));
        }
        for (append, ..) in &asked {
            self.trimming.ask(&append.to.unit, &append.stream, &connection.scripts, &mut pipeline);
        }
        self.durability.ask(&mut pipeline);
        let in_doubt = self.durability.in_doubt();
        let answers = self.publishing.send(connection, &pipeline).await?;
        in_doubt.settle();

        let (mut answers, confirmations) =
            answers.split_at(answers.len().saturating_sub(self.durability.questions()));
        let kept = self.durability.confirmed(confirmations);
        let mut left = Vec::new();
        for (append, way, commands) in asked {
            let (own, rest) = answers.split_at(commands.min(answers.len()));
            answers = rest;
            let answer = match way {
                Way::Script => self.read_script(&append, own, now),
                Way::Transaction(version) => match Answers::of(own, version.is_some()) {
                    Some(own) => {
                        let answer = own.read();
                        if own.is_broken() {
                            self.publishing.distrust(connection);
                        }
                        if !own.is_verified() || matches!(answer, Ok(Answer::Changed)) {
                            self.epochs.forget(&append.key);
                        }
                        answer
                    }
                    None => Err(Error::unexpected("a transaction")),
                },
            };
            let appended = match answer {
                Ok(Answer::Changed) => {
                    left.push(append.to);
                    continue;
                }
                // Nothing was done of these: by a server without scripts, or by a node that has the
                // slot no more.
                Err(error) if !last && matches!(error.class, "no-script" | "cluster") => {
                    left.push(append.to);
                    continue;
                }
                Ok(Answer::Appended(appended)) => Ok(appended),
                Err(error) => Err(error),
            };
            publication::report(&append.to, appended, &kept, outcomes);
        }
        Ok(left)
    }

    fn append_of<'b>(&self, batch: &'b PublishBatch, to: StreamAppend) -> Append<'b> {
        let epoch = |bucket: Bucket| batch.epochs.get(&bucket).map(|epoch| (bucket, *epoch));
        Append {
            stream: self.routing.stream(&to.unit),
            key: self.routing.epochs(&to.unit, &batch.route, &batch.source),
            epochs: to.buckets().into_iter().filter_map(epoch).collect(),
            keep: self.epochs.counts_for(),
            to,
            batch,
        }
    }

    fn read_script(&self, append: &Append<'_>, answers: &[Value], asked: Instant) -> Result<Answer, Error> {
        let answer = answers.first().unwrap_or(&Value::Nil);
        let appended = refusal(answer).map_or_else(|| Appended::read(answer), Err)?;
        match appended.accepted() {
            Some((before, after)) => {
                self.epochs.learn(&append.key, &append.epochs, before, after.to_owned(), asked);
            }
            None => self.epochs.forget(&append.key),
        }
        Ok(Answer::Appended(appended))
    }
}
