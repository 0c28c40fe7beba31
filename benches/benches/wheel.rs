//! The timer wheel: the cost of deadlines, nearly all of which are postponed or cleared in time.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use evring::__private::TimerWheel;

const CONNECTIONS: u32 = 10_000;

/// Returns a wheel with a deadline for each connection, spread over a minute.
fn full(now: Instant) -> TimerWheel {
    let mut wheel = TimerWheel::new(now);
    for id in 0..CONNECTIONS {
        wheel.set(id, now + Duration::from_millis(u64::from(id) * 6 + 5));
    }
    wheel
}

fn wheel(c: &mut Criterion) {
    let now = Instant::now();
    let mut group = c.benchmark_group("wheel");

    let (mut at, mut id, mut wheel) = (now + Duration::from_secs(60), 0, full(now));
    group.bench_function("postpone, as for each request", |b| {
        b.iter(|| {
            id = (id + 1) % CONNECTIONS;
            at += Duration::from_micros(1);
            wheel.set(id, at);
        });
    });

    let mut wheel = full(now);
    group.bench_function("clear and set", |b| {
        b.iter(|| {
            id = (id + 1) % CONNECTIONS;
            wheel.clear(id);
            wheel.set(id, now + Duration::from_secs(30));
        });
    });

    let wheel = full(now);
    group.bench_function("next of 10,000", |b| b.iter(|| black_box(&wheel).next_deadline()));

    group.throughput(Throughput::Elements(u64::from(CONNECTIONS)));
    group.bench_function("10,000 expire over a minute", |b| {
        b.iter_batched_ref(
            || full(now),
            |wheel| {
                let mut expired = 0;
                while let Some(at) = wheel.next_deadline() {
                    while wheel.pop_expired(at).is_some() {
                        expired += 1;
                    }
                }
                assert_eq!(expired, CONNECTIONS);
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

criterion_group!(benches, wheel);
criterion_main!(benches);
