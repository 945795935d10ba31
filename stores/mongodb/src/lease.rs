//! Leases: reads the owners, lets [`Ownership`] decide, and writes the decision unless another
//! relay was faster.
//!
//! Reading is with read concern *local*: an older state would be refused at the write anyway. The
//! write is confirmed by a majority, and with it everything that was read.

use std::time::Duration;

use mongodb::ClientSession;
use mongodb::bson::{self, Bson, doc};
use mongodb::options::ReadConcern;
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::{BucketSet, Lease, LeaseRequest, Leased, LowWater, RelayId};
use outbox_contract::{Route, StoreError, StoreErrorKind};

use crate::database::{Database, ROUTE};
use crate::error::{Failed, is_duplicate};
use crate::migrate;
use crate::ownership::Ownership;
use crate::transaction::Attempts;

pub(crate) async fn heartbeat(database: &Database, request: &LeaseRequest) -> Result<Leased, StoreError> {
    change(database, "lease", &request.route, |route| route.beat(request)).await
}

pub(crate) async fn give_back(
    database: &Database,
    relay: RelayId,
    route: &Route,
    leases: &[Lease],
    low_water: &LowWater,
    leaving: bool,
) -> Result<(), StoreError> {
    change(database, "give_back", route, |route| route.give_back(relay, leases, low_water, leaving)).await
}

/// Changes a route: decides, and decides again when somebody else has changed it meanwhile.
pub(crate) async fn change<T>(
    database: &Database,
    operation: &'static str,
    route: &Route,
    mut decide: impl FnMut(&mut Ownership) -> T,
) -> Result<T, StoreError> {
    let mut attempts = Attempts::new(database.options.conflict_timeout);
    loop {
        let failed = match try_change(database, route, &mut decide).await {
            Ok(Some(done)) => return Ok(done),
            Ok(None) => StoreError::new(
                StoreErrorKind::Conflict,
                operation,
                format!("write conflict: another relay has changed the route {route}"),
            )
            .into(),
            Err(failed) => failed,
        };
        attempts.after(operation, failed).await?;
    }
}

/// Returns none if another relay was faster.
async fn try_change<T>(
    database: &Database,
    route: &Route,
    decide: &mut impl FnMut(&mut Ownership) -> T,
) -> Result<Option<T>, Failed> {
    let mut session = database.session().await?;
    let mut read = read(database, &mut session, route, Some(ReadConcern::local())).await?;
    if read.is_none() {
        make(database, route).await?;
        read = self::read(database, &mut session, route, Some(ReadConcern::local())).await?;
    }
    let Some(mut ownership) = read else { return Ok(None) };
    let version = ownership.version;
    let done = decide(&mut ownership);
    let write = doc! { "$set": {
        "version": version + 1,
        "relays": bson::serialize_to_bson(&ownership.relays).map_err(unwritable)?,
        "epochs": &ownership.epochs,
        "sinces": &ownership.sinces,
        "low_waters": &ownership.low_waters,
    } };
    let written = database
        .routes()
        .update_one(doc! { "_id": route.as_str(), "version": version }, write)
        .session(&mut session)
        .await?;
    database.note(&session);
    Ok((written.matched_count == 1).then_some(done))
}

fn unwritable(error: bson::error::Error) -> Failed {
    StoreError::new(StoreErrorKind::Other, "lease", "the state of a route can't be written")
        .with_source(error)
        .into()
}

/// A route's document as it stands, with the database's clock. None: there is none. In a
/// transaction the concern is the transaction's.
pub(crate) async fn read(
    database: &Database,
    session: &mut ClientSession,
    route: &Route,
    concern: Option<ReadConcern>,
) -> Result<Option<Ownership>, Failed> {
    let pipeline = [doc! { "$match": { "_id": route.as_str() } }, doc! { "$set": { "now": "$$NOW" } }];
    let routes = database.routes();
    let mut aggregate = routes.aggregate(pipeline).with_type::<Ownership>();
    if let Some(concern) = concern {
        aggregate = aggregate.read_concern(concern);
    }
    let mut cursor = aggregate.session(&mut *session).await?;
    let read = cursor.next(session).await.transpose()?;
    match read {
        Some(ownership) if !ownership.is_whole() => Err(altered(route).into()),
        read => Ok(read),
    }
}

/// The buckets that a relay owns now, of those asked for.
pub(crate) async fn held(
    database: &Database,
    session: &mut ClientSession,
    route: &Route,
    relay: RelayId,
    wanted: &BucketSet,
) -> Result<BucketSet, Failed> {
    let read = read(database, session, route, Some(ReadConcern::majority())).await?;
    Ok(read.map_or(BucketSet::EMPTY, |ownership| ownership.owned(relay).intersection(wanted)))
}

/// Makes the document of a route that is new. In a transaction it would conflict with others that
/// make it.
pub(crate) async fn make(database: &Database, route: &Route) -> Result<(), Failed> {
    migrate::require(database, "lease").await?;
    match database.routes().insert_one(Ownership::new(route)).await {
        Err(error) if !is_duplicate(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

fn altered(route: &Route) -> StoreError {
    StoreError::new(
        StoreErrorKind::SchemaAltered,
        "lease",
        format!(
            "the document of the route {route} in {ROUTE} is not what the store wrote; restore it, or remove it while no relay runs"
        ),
    )
}

/// Takes or keeps a role. The clock is read first, and the holder must be the one that was read.
pub(crate) async fn elect(
    database: &Database,
    role: &str,
    relay: RelayId,
    lasts: Duration,
) -> Result<bool, Failed> {
    let mut session = database.session().await?;
    let now = database.now(&mut session).await?;
    let roles = database.roles();
    let relay = relay.to_string();
    let lasts = micros(lasts);
    let holder =
        roles.find_one(doc! { "_id": role }).read_concern(ReadConcern::local()).session(&mut session).await?;
    let Some(holder) = holder else {
        let first =
            doc! { "_id": role, "relay": relay, "expires_at": now.saturating_add(lasts), "lasts": lasts };
        return match roles.insert_one(first).await {
            Ok(_) => Ok(true),
            Err(error) if is_duplicate(&error) => Ok(false),
            Err(error) => Err(error.into()),
        };
    };
    let number = |field| holder.get(field).and_then(Bson::as_i64).unwrap_or_default();
    let (until, lasted) = (number("expires_at"), number("lasts"));
    let is_free = until <= now || until > now.saturating_add(lasted.saturating_mul(2));
    if !is_free && holder.get_str("relay").ok() != Some(&relay) {
        return Ok(false);
    }
    let was = doc! { "_id": role, "relay": holder.get("relay"), "expires_at": until };
    let is = doc! { "$set": { "relay": relay, "expires_at": now.saturating_add(lasts), "lasts": lasts } };
    let written = roles.update_one(was, is).session(&mut session).await?;
    Ok(written.matched_count == 1)
}
