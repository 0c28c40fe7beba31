//! A handler in a sandbox that answers `get` in front of the server (ASH, section 5.4.1): `examples/handlers/kv_get.rs`.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use ash_sandbox::sandbox::{Ash, MAX_TABLE_BYTES, Policy, Sandboxer, SharedTable};
use evring::AnyMechanism;
use evring::hooks::{Binding, Hooked, Landing, Tenant};

use crate::{Database, Kv, Mirror, MirrorMemory};

impl MirrorMemory for SharedTable {
    fn words(&self) -> &[AtomicU64] {
        SharedTable::words(self)
    }
}

/// A loaded handler, and the table that its instances read. A clone is for another worker of the same database: the table
/// has the values and the clock of one.
#[derive(Clone, Debug)]
pub struct GetHandler {
    ash: Ash,
    table: Arc<SharedTable>,
    mirror: Mirror,
}

impl GetHandler {
    /// Loads a module. The buckets of the table of replies have at most one sixteenth of the memory for values, and at most
    /// 512 MiB. They are not a part of that memory, and in use from the start.
    ///
    /// # Errors
    /// If the module is rejected, or there is no memory for the table.
    pub fn load(wasm: &[u8], memory: usize) -> Result<Self, Box<dyn Error>> {
        let policy = Policy::default().with(|p| {
            p.message_area_bytes = 16 << 10;
            p.reply_slots = 1;
            // A server for one application: the handler may use all of its cores.
            p.operations_per_second = u64::MAX >> 8;
        });
        let ash = Sandboxer::new(policy)?.load(wasm)?;
        // Half of the maximum, as the table has a header, too, and the number of buckets is a power of two.
        let table = SharedTable::new(Mirror::bytes_for((memory / 16).min(MAX_TABLE_BYTES / 2)))?;
        let mirror = Mirror::over(Arc::clone(&table) as Arc<dyn MirrorMemory>);
        Ok(GetHandler { ash, table, mirror })
    }

    /// Returns the replies for the handler, for [`Database::mirrored`].
    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// Puts an instance of the handler before a worker's server: it gets the messages that begin with `get `. Workers
    /// have different numbers.
    ///
    /// # Errors
    /// If there is no memory for the instance, or the mechanism does not take it.
    pub fn before(
        &self,
        database: Database,
        worker: u64,
        mechanism: &mut AnyMechanism,
    ) -> Result<(Hooked<Kv, Landing>, Tenant), Box<dyn Error>> {
        let handler = self.ash.instantiate_with(worker, &self.table)?;
        // Its clock began before that.
        let now = Instant::now();
        let since_start = now.saturating_duration_since(database.common.started(now));
        self.mirror.set_clock(worker, since_start);
        let mut landing = Landing::new();
        // Messages land in the buffers of the server, as few are for the handler, and short: it gets copies.
        let tenant = landing.bind(handler, 1, 256, |buffers| mechanism.add_buffers(buffers))?;
        let gets = Binding::Filter { offset: 0, bytes: b"get ".to_vec() };
        landing.bindings().bind(gets, &tenant)?;
        let counted = tenant.clone();
        database.common.hits.add(move || counted.counters().handled);
        Ok((Hooked::new(Kv::new(database), landing), tenant))
    }
}
