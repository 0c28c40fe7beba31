//! Generated modules.

use wasm_smith::Config;

/// Number of bytes from which a module is generated.
const SEED_BYTES: usize = 4096;

/// Returns the bytes from which the module of a seed is generated.
pub(crate) fn bytes(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(SEED_BYTES).collect()
}

/// Returns the settings for modules that the sandboxer should accept, with the imports and exports of `shape`.
pub(crate) fn like_handlers(shape: &str, allow_floats: bool, bulk_memory_enabled: bool) -> Config {
    Config {
        module_shape: Some(wat::parse_str(shape).unwrap()),
        allow_start_export: false,
        allow_floats,
        bulk_memory_enabled,
        exceptions_enabled: false,
        gc_enabled: false,
        max_data_segments: 2,
        max_globals: 64,
        max_instructions: 400,
        max_tables: 1,
        max_table_elements: 100,
        memory64_enabled: false,
        reference_types_enabled: false,
        relaxed_simd_enabled: false,
        simd_enabled: false,
        tail_call_enabled: false,
        threads_enabled: false,
        ..Config::default()
    }
}
