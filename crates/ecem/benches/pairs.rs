//! The pair table and deferred delivery with 1, 1,000 and 100,000 pairs.

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ecem::{Config, Delivery, Event, EventKind, EventManager, PairTable, Readiness};

const PAIRS: [i32; 3] = [1, 1_000, 100_000];

fn read(file: i32) -> Event {
    Event::new(file, EventKind::DiskReadResponse)
}

fn write(file: i32) -> Event {
    Event::new(1_000_000 + file, EventKind::NetworkWriteRequest)
}

fn table(c: &mut Criterion) {
    let mut group = c.benchmark_group("table");
    for pairs in PAIRS {
        let mut table = PairTable::new(pairs as usize + 1);
        (0..pairs).for_each(|file| assert!(table.add(read(file), write(file)).is_ok()));
        let mut file = 0;
        let mut next = move || {
            file = (file + 7_919) % pairs;
            file
        };
        group.bench_function(BenchmarkId::new("add_remove", pairs), |b| {
            b.iter(|| {
                let id = table.add(read(-1), write(-1)).unwrap();
                table.remove(id)
            })
        });
        group.bench_function(BenchmarkId::new("find", pairs), |b| {
            b.iter(|| {
                let file = next();
                black_box(table.find(read(file), write(file)))
            })
        });
        group.bench_function(BenchmarkId::new("set_both", pairs), |b| {
            b.iter(|| {
                let event = write(next());
                table.set(event, Readiness::Ready, |_, _, _| {});
                table.set(event, Readiness::Wait, |_, _, _| {});
            })
        });
    }
    group.finish();
}

fn manager(c: &mut Criterion) {
    let mut group = c.benchmark_group("manager");
    let now = Instant::now();
    for pairs in PAIRS {
        let mut config = Config::default();
        config.max_pairs = pairs as usize;
        let mut manager = EventManager::new(&config);
        let ids: Vec<_> = (0..pairs)
            .map(|file| manager.add(read(file), write(file), Readiness::Ready).unwrap())
            .collect();
        let mut file = 0;
        group.bench_function(BenchmarkId::new("deliver_now", pairs), |b| {
            b.iter(|| {
                file = (file + 7_919) % pairs;
                manager.deliver(ids[file as usize], 1, now) == Delivery::Now(1)
            })
        });
        group.bench_function(BenchmarkId::new("defer_and_release", pairs), |b| {
            b.iter(|| {
                file = (file + 7_919) % pairs;
                manager.set_post(ids[file as usize], Readiness::Wait);
                let _ = manager.deliver(ids[file as usize], 1, now);
                manager.set_post(ids[file as usize], Readiness::Ready);
                manager.next(now)
            })
        });
    }
    group.finish();
}

criterion_group!(benches, table, manager);
criterion_main!(benches);
