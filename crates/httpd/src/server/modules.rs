//! Loads the handlers in a sandbox that the settings name.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;

use ash_sandbox::sandbox::{Policy, Rejection, Sandboxer};
use evring::sockets::ListeningSocket;

use crate::regular_file;
use crate::server::addresses::Addresses;
use crate::server::error::Error;
use crate::server::options::{HandlerModule, HandlerTenant};
use crate::server::sockets::merge_families;
use crate::site::sandbox::SandboxedHandler;

/// Loads handlers. One sandboxer loads all, as handlers of a tenant share what it keeps for the tenant.
/// Compiled handlers are kept in the directory `cache`.
pub(crate) fn load(
    modules: &[HandlerModule],
    cache: Option<&Path>,
) -> Result<Vec<SandboxedHandler>, Error> {
    let Some(first) = modules.first() else { return Ok(Vec::new()) };
    let mut sandboxer = sandboxer(first)?;
    if let Some(directory) = cache {
        sandboxer = sandboxer.with_cache(directory).map_err(Error::HandlerCache)?;
    }
    let tenants = numbers(modules);
    let load = |(tenant, module): (u64, &HandlerModule)| {
        let wasm = read(&module.file, sandboxer.policy().max_module_bytes);
        let wasm = wasm.map_err(|error| Error::HandlerFile(module.file.clone(), error))?;
        let ash = sandboxer.load(&wasm).map_err(|rejection| rejected(module, rejection))?;
        let name = module.file.display().to_string();
        let handler = SandboxedHandler::new(&name, ash).path(&module.path).tenant(tenant);
        let addresses = module.listen.as_ref().map(Addresses::as_slice);
        Ok(addresses.into_iter().fold(handler, SandboxedHandler::listener_at_one_of))
    };
    tenants.into_iter().zip(modules).map(load).collect()
}

/// Loads handlers as [`load`] does. Checks the cache, without writing to it.
pub(crate) fn check(
    modules: &[HandlerModule],
    cache: Option<&Path>,
) -> Result<Vec<SandboxedHandler>, Error> {
    if let (Some(first), Some(directory)) = (modules.first(), cache) {
        sandboxer(first)?.with_cache(directory).map_err(Error::HandlerCache)?;
    }
    load(modules, None)
}

/// Returns a sandboxer for modules, of which an error names the first one.
fn sandboxer(first: &HandlerModule) -> Result<Sandboxer, Error> {
    Sandboxer::new(Policy::default()).map_err(|rejection| rejected(first, rejection))
}

fn rejected(module: &HandlerModule, rejection: Rejection) -> Error {
    Error::Handler(module.file.display().to_string(), rejection)
}

/// Reads a file of up to `max` bytes.
fn read(file: &Path, max: usize) -> io::Result<Vec<u8>> {
    let mut wasm = Vec::new();
    regular_file::open(file)?.take(max as u64 + 1).read_to_end(&mut wasm)?;
    if wasm.len() > max {
        return Err(io::Error::other(format!("it has more than {max} bytes")));
    }
    Ok(wasm)
}

/// Finds the addresses of the handlers among those at which the server serves, of which `inherited` sockets have some.
pub(crate) fn find_listeners(
    handlers: &mut [SandboxedHandler],
    listen: &[SocketAddr],
    inherited: &[ListeningSocket],
) -> Result<(), Error> {
    for handler in handlers {
        // As for the server's own addresses.
        handler.addresses_mut().for_each(|addresses| merge_families(addresses, inherited));
        let found = handler.find_listeners(listen);
        found.map_err(|(name, at)| Error::HandlerAddress(name, at))?;
    }
    Ok(())
}

/// Returns the number of each handler's tenant. A name, and a handler without a tenant, gets the next number that no other
/// tenant has.
fn numbers(modules: &[HandlerModule]) -> Vec<u64> {
    let is_number =
        |n: u64| modules.iter().any(|module| module.tenant == Some(HandlerTenant::Number(n)));
    let mut free = (0..).filter(|n| !is_number(*n));
    let mut names = HashMap::new();
    let mut next = || free.next().unwrap_or(u64::MAX);
    let tenants = modules.iter().map(|module| match &module.tenant {
        None => next(),
        Some(HandlerTenant::Number(number)) => *number,
        Some(HandlerTenant::Name(name)) => *names.entry(name).or_insert_with(&mut next),
    });
    tenants.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use ash_sandbox::sandbox::{Outcome, Pass};

    use super::*;
    use crate::site::sandbox::Sandbox;

    /// A handler that uses almost all operations of an invocation.
    const LONG: &str = r#"(module
        (memory (export "memory") 1 1)
        (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (local $n i32)
            (loop $more
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (br_if $more (i32.lt_u (local.get $n) (i32.const 10000))))
            (i32.const 1)))"#;

    #[test]
    fn handler_without_a_tenant_had_the_budget_of_a_number() {
        let modules = ["a,tenant=1", "b", "c,tenant=x", "d", "e,tenant=x", "f,tenant=0"];
        let modules = modules.map(|module| module.parse().unwrap());
        assert_eq!(numbers(&modules), [1, 2, 3, 4, 3, 0]);
    }

    #[test]
    fn each_handler_and_worker_had_the_budget_of_its_tenant() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("long.wasm");
        fs::write(&file, wat::parse_str(LONG).unwrap()).unwrap();
        let module = |tenant| format!("{},tenant={tenant}", file.display()).parse().unwrap();
        let handlers = load(&[module(1), module(1), module(2)], None).unwrap();
        let mut workers = [0, 1].map(|_| Sandbox::new(&handlers, &[]).unwrap());
        let now = Instant::now();
        let first = workers[0].handlers().next().unwrap();
        while first.handle_copy(b"", 0, now) == Outcome::Handled {}
        let over = Outcome::Passed(Pass::OverBudget);
        for worker in &mut workers {
            let outcomes = worker.handlers().map(|handler| handler.handle_copy(b"", 0, now));
            assert_eq!(
                outcomes.collect::<Vec<_>>(),
                [over.clone(), over.clone(), Outcome::Handled]
            );
        }
    }
}
