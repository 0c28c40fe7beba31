//! The sandboxer (section 5.5): checks, classifies and compiles modules.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use wasmtime::{Config, Engine, Global, Linker, Module, Mutability, OperatorCost, OptLevel, Store};

use super::analysis::{Analysis, MAX_GLOBALS, analyse};
use super::budget::Budgets;
use super::cache::{Cache, CacheError};
use super::call::ENTRY;
use super::clock::Clock;
use super::cost::LOAD;
use super::dropped::Dropped;
use super::handler::{Handler, HandlerCode, Instance};
use super::host::{self, Charging, Host};
use super::memory::{Areas, Creator, Memories};
use super::rewrite::{global_name, rewrite};
use super::{Bound, HandlerMemory, Loops, NativeCalls, Policy, Reason, Rejection, SharedTable};

/// Maximum number of reply slots, which are the bits of a set.
const MAX_SLOTS: u16 = 64;

/// Maximum size of a handler's stack in bytes. It is a part of the thread's stack, which has 256 KiB in a green thread of
/// `flexsc-rt`: with all of these, a handler that recurses would meet the guard page and end the process.
const MAX_STACK: usize = 128 << 10;

/// Each instruction is one operation, and a load several, as in `cost`. Those that cost nothing by default are code, too: a
/// loop checks the bound, and among many labels there are jumps.
const COSTS: OperatorCost = OperatorCost {
    Nop: 1,
    Drop: 1,
    Block: 1,
    Loop: 1,
    Else: 1,
    End: 1,
    Return: 1,
    Unreachable: 1,
    I32Load: LOAD,
    I64Load: LOAD,
    F32Load: LOAD,
    F64Load: LOAD,
    I32Load8S: LOAD,
    I32Load8U: LOAD,
    I32Load16S: LOAD,
    I32Load16U: LOAD,
    I64Load8S: LOAD,
    I64Load8U: LOAD,
    I64Load16S: LOAD,
    I64Load16U: LOAD,
    I64Load32S: LOAD,
    I64Load32U: LOAD,
    ..OperatorCost::new()
};

/// Checks modules and compiles them to handlers.
pub struct Sandboxer {
    policy: Arc<Policy>,
    memories: Arc<Memories>,
    budgets: Arc<Budgets>,
    dropped: Arc<Dropped>,
    /// Without checks, for acyclic handlers.
    plain: Engine,
    /// With the checks of the policy, for cyclic ones.
    checked: Engine,
    cache: Option<Cache>,
    /// Of the modules and handlers that it bounds.
    clock: Mutex<Weak<Clock>>,
}

impl fmt::Debug for Sandboxer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandboxer").field("policy", &self.policy).finish_non_exhaustive()
    }
}

fn compiler(error: impl fmt::Display) -> Rejection {
    Reason::Compiler(format!("{error:#}")).into()
}

impl Sandboxer {
    /// Creates a sandboxer with a policy.
    ///
    /// # Errors
    /// If code cannot be generated on this machine, the message area or the reply slots are not of whole
    /// pages, or the number of slots is not a power of two up to 64.
    pub fn new(policy: Policy) -> Result<Self, Rejection> {
        let page = rustix::param::page_size();
        if policy.message_area_bytes == 0 || !policy.message_area_bytes.is_multiple_of(page) {
            let bytes = policy.message_area_bytes;
            let reason = format!("the message area of {bytes} bytes is not of pages of {page}");
            return Err(Reason::Memory(reason).into());
        }
        let (slots, bytes) = (policy.reply_slots, policy.reply_slot_bytes);
        if bytes == 0 || !bytes.is_multiple_of(page) || bytes > 1 << 24 {
            let reason =
                format!("a reply slot of {bytes} bytes is not of up to 16 MiB in pages of {page}");
            return Err(Reason::Memory(reason).into());
        }
        if !slots.is_power_of_two() || slots > MAX_SLOTS {
            let reason = format!("{slots} reply slots are no power of two up to {MAX_SLOTS}");
            return Err(Reason::Memory(reason).into());
        }
        let memories = Memories::new(Areas {
            replies: usize::from(slots) * bytes,
            messages: policy.message_area_bytes,
        });
        let engine = |checks: Option<Loops>| {
            let mut config = Config::new();
            config
                .cranelift_opt_level(OptLevel::Speed)
                .wasm_backtrace_max_frames(None)
                .wasm_simd(false)
                .wasm_relaxed_simd(false)
                .memory_may_move(false)
                // Its images are for memories that wasmtime maps itself.
                .memory_init_cow(false)
                .max_wasm_stack(MAX_STACK)
                .consume_fuel(checks == Some(Loops::Fuel))
                .operator_cost(COSTS)
                .epoch_interruption(matches!(checks, Some(Loops::Epoch(_))))
                .with_host_memory(Arc::new(Creator(Arc::clone(&memories))));
            Engine::new(&config).map_err(compiler)
        };
        let checked = engine(Some(policy.loops))?;
        Ok(Sandboxer {
            policy: Arc::new(policy),
            budgets: Arc::default(),
            dropped: Arc::default(),
            plain: engine(None)?,
            checked,
            memories,
            cache: None,
            clock: Mutex::default(),
        })
    }

    /// Keeps compiled modules in a directory, which only this user may write to: the newest ones, up to 256 and 512 MiB.
    ///
    /// # Errors
    /// If others can write to the directory, or it does not exist.
    pub fn with_cache(mut self, directory: &Path) -> Result<Self, CacheError> {
        self.cache = Some(Cache::new(directory)?);
        Ok(self)
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Checks and compiles a module.
    ///
    /// # Errors
    /// The reason why the policy rejects it, and the function where it was found.
    pub fn load(&self, wasm: &[u8]) -> Result<Ash, Rejection> {
        if wasm.len() > self.policy.max_module_bytes {
            return Err(Reason::TooLarge(wasm.len(), self.policy.max_module_bytes).into());
        }
        if !wasm.starts_with(b"\0asm") {
            let is_text = str::from_utf8(wasm).is_ok_and(|text| text.contains("(module"));
            let reason = if is_text { Reason::Text } else { Reason::NoModule };
            return Err(reason.into());
        }
        let (analysis, extra) = analyse(wasm, &self.policy)?;
        let extra = (analysis.bound == Bound::Cyclic).then_some(extra);
        let wasm = &rewrite(wasm, extra)?[..];
        let (engine, clock) = match (analysis.bound, self.policy.loops) {
            (Bound::Acyclic(_), _) => (&self.plain, None),
            (Bound::Cyclic, Loops::Fuel) => (&self.checked, None),
            (Bound::Cyclic, Loops::Epoch(tick)) => (&self.checked, Some(self.clock(tick)?)),
        };
        let compile = || Module::new(engine, wasm).map_err(compiler);
        let module = match &self.cache {
            Some(cache) => cache.get(engine, wasm, compile)?,
            None => compile()?,
        };
        let (policy, memories) = (Arc::clone(&self.policy), Arc::clone(&self.memories));
        let (budgets, dropped) = (Arc::clone(&self.budgets), Arc::clone(&self.dropped));
        Ok(Ash { module, analysis, policy, memories, budgets, dropped, clock })
    }

    /// Returns the clock that bounds cyclic handlers.
    fn clock(&self, tick: Duration) -> Result<Arc<Clock>, Rejection> {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(clock) = clock.upgrade().filter(|clock| clock.ticks_here()) {
            return Ok(clock);
        }
        let started = Arc::new(Clock::start(tick, self.checked.weak()).map_err(compiler)?);
        *clock = Arc::downgrade(&started);
        Ok(started)
    }

    /// Creates an unsafe handler (section 6.3): native code in the place of a module, with the same memory
    /// and calls, but without the sandbox. `entry` returns what `ash_handle` returns, such as
    /// [`HANDLED`](super::HANDLED). It is charged for its host calls, and not for what it computes. Nothing bounds its time; a
    /// panic goes to the caller.
    ///
    /// It serves to measure the cost of the sandbox, and where code of the program itself answers messages.
    ///
    /// # Errors
    /// If `memory_bytes`, the size of the handler's own memory, is not of whole pages up to
    /// [`Policy::max_memory_bytes`], or cannot be mapped.
    pub fn trust(
        &self,
        tenant: u64,
        memory_bytes: usize,
        entry: impl FnMut(&mut NativeCalls<'_>) -> i32 + Send + 'static,
    ) -> Result<Handler, Rejection> {
        let page = rustix::param::page_size();
        let max = self.policy.max_memory_bytes;
        if memory_bytes == 0 || !memory_bytes.is_multiple_of(page) || memory_bytes > max {
            let reason = format!("{memory_bytes} bytes are not of up to {max} in pages of {page}");
            return Err(Reason::Memory(reason).into());
        }
        let areas = self.memories.areas;
        let reserved = memory_bytes + areas.replies + areas.messages + page;
        let memory = HandlerMemory::new(memory_bytes, areas, None, reserved);
        let memory = memory.map_err(|e| Rejection::new(Reason::Memory(e.to_string())))?;
        let host = Box::new(Host::new(tenant, Charging::Calls, &self.policy));
        let code = HandlerCode::Native { host, entry: Box::new(entry) };
        let (memory, policy) = (Arc::new(memory), Arc::clone(&self.policy));
        let budget = self.budgets.of(tenant, &policy);
        let dropped = Arc::downgrade(&self.dropped);
        Ok(Handler::new(code, memory, policy, budget, (Bound::Acyclic(1), true), (None, dropped)))
    }
}

/// A checked and compiled handler, from which each tenant makes its own instance.
#[derive(Clone)]
pub struct Ash {
    module: Module,
    analysis: Analysis,
    policy: Arc<Policy>,
    memories: Arc<Memories>,
    budgets: Arc<Budgets>,
    dropped: Arc<Dropped>,
    clock: Option<Arc<Clock>>,
}

impl fmt::Debug for Ash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ash").field("analysis", &self.analysis).finish_non_exhaustive()
    }
}

impl Ash {
    /// Returns how the run time is bounded.
    pub fn bound(&self) -> Bound {
        self.analysis.bound
    }

    /// Creates an instance for a tenant, with a memory of its own. All handlers of a tenant that this
    /// sandboxer has loaded share [the operations of a second](Policy::operations_per_second).
    ///
    /// # Errors
    /// If the memory cannot be mapped, or in a child of the process that has loaded a handler which is bounded by a
    /// [clock](Loops::Epoch).
    pub fn instantiate(&self, tenant: u64) -> Result<Handler, Rejection> {
        self.instance(tenant, None)
    }

    /// Creates an instance as [`instantiate`](Self::instantiate) does, that reads a table of the application.
    ///
    /// # Errors
    /// As [`instantiate`](Self::instantiate).
    pub fn instantiate_with(
        &self,
        tenant: u64,
        table: &Arc<SharedTable>,
    ) -> Result<Handler, Rejection> {
        self.instance(tenant, Some(Arc::clone(table)))
    }

    fn instance(&self, tenant: u64, table: Option<Arc<SharedTable>>) -> Result<Handler, Rejection> {
        if self.clock.as_ref().is_some_and(|clock| !clock.ticks_here()) {
            return Err(Reason::OtherProcess.into());
        }
        self.dropped.free();
        let policy = Arc::clone(&self.policy);
        let is_cyclic = self.analysis.bound == Bound::Cyclic;
        let has_fuel = is_cyclic && policy.loops == Loops::Fuel;
        let mut linker = Linker::new(self.module.engine());
        host::link(&mut linker).map_err(compiler)?;
        let charging = match self.analysis.bound {
            Bound::Acyclic(_) => Charging::Bytes,
            Bound::Cyclic if has_fuel => Charging::Fuel,
            Bound::Cyclic => Charging::Calls,
        };
        let host = Host::new(tenant, charging, &policy);
        let mut store = Store::new(self.module.engine(), host);
        // Code that fills the memory counts, for as long as the module is; each invocation sets a bound of its own.
        if has_fuel {
            store.set_fuel(u64::MAX / 2).map_err(compiler)?;
        }
        if let Some(clock) = self.clock.as_ref().filter(|_| is_cyclic) {
            store.set_epoch_deadline(u64::MAX / 2);
            let tick = clock.tick();
            store.epoch_deadline_callback(move |mut store| {
                Ok(store.data_mut().own_time.at_tick(tick))
            });
        }
        let instantiate = || linker.instantiate(&mut store, &self.module);
        let (instance, memory) = self
            .memories
            .with(table, instantiate)
            .map_err(|error| Rejection::new(Reason::Memory(format!("{error:#}"))))?;
        let entry = instance.get_typed_func(&mut store, ENTRY);
        let entry = entry.map_err(|_| Rejection::new(Reason::NoEntry))?;
        // A module may export others by these names, but none that changes: see `rewrite`.
        let globals = (0..MAX_GLOBALS as usize)
            .map_while(|n| instance.get_global(&mut store, &global_name(n)));
        let globals: Vec<_> = globals.collect();
        let is_mutable = |global: &Global| global.ty(&store).mutability() == Mutability::Var;
        let globals = globals.into_iter().filter(is_mutable).collect();
        let code = HandlerCode::Module(Instance::new(store, entry, globals));
        let budget = self.budgets.of(tenant, &policy);
        let Analysis { bound, is_by_bytes, .. } = self.analysis;
        let ends = (self.clock.clone(), Arc::downgrade(&self.dropped));
        Ok(Handler::new(code, memory, policy, budget, (bound, is_by_bytes), ends))
    }
}
