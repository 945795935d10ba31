//! Bugs of the broken store in transactions of writers and handlers.

use super::*;

#[async_trait]
impl Transactional for BrokenStore {
    type Tx<'t> = BrokenTx<'t>;
    type Connection = MemoryTx;

    fn connection<'c>(tx: &'c mut BrokenTx<'_>) -> &'c mut MemoryTx {
        &mut tx.inner
    }

    async fn begin(&self) -> Result<BrokenTx<'static>, StoreError> {
        Ok(BrokenTx { inner: self.inner.begin().await?, late: Vec::new() })
    }

    async fn commit(&self, mut tx: BrokenTx<'static>) -> Committed {
        if self.has(Bug::CommitsByHalves) {
            return self.commit_by_halves(tx).await;
        }
        if !tx.late.is_empty()
            && let Err(error) = self.inner.append(&mut tx.inner, &tx.late).await
        {
            return Committed::No(StoreError::new(StoreErrorKind::Conflict, "commit", error.to_string()));
        }
        self.inner.commit(tx.inner).await
    }

    async fn rollback(&self, tx: BrokenTx<'static>) -> Result<(), StoreError> {
        self.inner.rollback(tx.inner).await
    }

    async fn append(&self, tx: &mut BrokenTx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        let mut messages = messages.to_vec();
        self.seen.lock().unwrap().appends += 1;
        match self.bug {
            Some(Bug::SwapsAppended) => messages.reverse(),
            Some(Bug::CutsPayloads) => {
                for outgoing in &mut messages {
                    outgoing.message.payload.truncate(65_535);
                }
            }
            Some(Bug::IgnoresDueTime) => messages.iter_mut().for_each(|outgoing| outgoing.due = None),
            Some(Bug::DelaysByTheSendersClock) => {
                // Two hours ahead of the database's.
                let senders = self.clock.now().plus(Duration::from_secs(7_200));
                for outgoing in &mut messages {
                    outgoing.due = outgoing.due.map(|due| DueTime::At(due.at(senders)));
                }
            }
            Some(Bug::WritesAtCommit | Bug::CommitsByHalves) => {
                tx.late.append(&mut messages);
                return Ok(());
            }
            Some(Bug::AppendsOutside) => {
                let mut own = self.inner.begin().await?;
                self.inner.append(&mut own, &messages).await?;
                return Ok(self.inner.commit(own).await.into_result()?);
            }
            Some(Bug::ValidatesOneByOne) => {
                for outgoing in &messages {
                    self.inner.append(&mut tx.inner, std::slice::from_ref(outgoing)).await?;
                }
                return Ok(());
            }
            _ => {}
        }
        self.inner.append(&mut tx.inner, &messages).await
    }

    async fn fence(
        &self,
        tx: &mut BrokenTx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        match self.bug {
            Some(Bug::FencesNothing) => Ok(vec![true; stored.len()]),
            // It looks, and lets go.
            Some(Bug::FencesForAMoment) => {
                let mut own = self.inner.begin().await?;
                self.inner.fence(&mut own, route, stored).await
            }
            _ => self.inner.fence(&mut tx.inner, route, stored).await,
        }
    }

    async fn deduplicate(
        &self,
        tx: &mut BrokenTx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        if self.has(Bug::DeduplicatesOutside) {
            let mut own = self.inner.begin().await?;
            let handled_ids = self.inner.deduplicate(&mut own, consumer, messages).await?;
            self.inner.commit(own).await.into_result()?;
            return Ok(handled_ids);
        }
        let mut handled_ids = self.inner.deduplicate(&mut tx.inner, consumer, messages).await?;
        self.see_handled(consumer, messages, &mut handled_ids);
        if self.has(Bug::PassesBacklog) {
            for deduplication in
                handled_ids.iter_mut().filter(|deduplication| **deduplication == Dedup::OutOfTurn)
            {
                *deduplication = Dedup::New;
            }
        }
        Ok(handled_ids)
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        self.inner.is_handled(consumer, id).await
    }
}
