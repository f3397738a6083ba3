"""What the configuration shares with the reference planner (NVIDIA Dynamo 1.4 to 1.6), and what it does not."""

# Keys that mean the same there. The default is theirs too, except where DEFAULTS says which theirs is.
SHARED = frozenset(
    {
        "mode",
        "optimization_target",
        "enable_throughput_scaling",
        "enable_load_scaling",
        "advisory",
        "ttft_ms",
        "itl_ms",
        "throughput_adjustment_interval_seconds",
        "load_adjustment_interval_seconds",
        "scheduling",
        "scheduling.scale_interval_seconds",
        "scheduling.tick_max_duration_seconds",
        "min_endpoint",
        "prefill_min_endpoint",
        "decode_min_endpoint",
        "max_gpu_budget",
        "min_gpu_budget",
        "prefill_engine_num_gpu",
        "decode_engine_num_gpu",
        "max_throughput_scaling_replicas",
        "load_predictor",
        "load_predictor_log1p",
        "kalman_q_level",
        "kalman_q_trend",
        "kalman_r",
        "kalman_min_points",
        "load_scaling_down_sensitivity",
        "load_min_observations",
        "fpm_sample_bucket_size",
        "prefill_scale_up_queue_tokens",
        "prefill_scale_down_queue_tokens",
        "decode_scale_up_kv_rate",
        "decode_scale_down_kv_rate",
        "speculative_nextn",
    }
)
DEFAULTS = {"load_predictor": "arima"}

# What the reference has under these names is elsewhere here, or not at all.
ELSEWHERE = {
    "environment": "sources and executors say where workers are",
    "backend": "component names belong to sources.dynamo_fpm.components",
    "namespace": "it belongs to sources.dynamo_fpm.namespace",
    "model_name": "it belongs to sources.frontend.model",
    "log_dir": "logs go to standard error",
    "max_num_fpm_samples": "engine speed is learned from all iterations, in memory of fixed size",
    "metric_pulling_prometheus_endpoint": "frontends are scraped: see sources.frontend",
    "metric_reporting_prometheus_port": "set PLANNER_PROMETHEUS_PORT for `headrace run`",
    "throughput_metrics_source": "frontends are scraped: see sources.frontend",
    "global_planner_namespace": "decisions are on a topic for anyone to read",
    "plugin_registration": "an outside proposer or forecaster writes to the bus and registers nowhere",
    "report_interval_hours": "the ticks stream holds every report",
    "live_dashboard_port": "the ticks stream holds every report",
    "control_api_port": "publish a configuration revision",
    "enable_power_awareness": "power is not budgeted",
    "total_gpu_power_limit": "power is not budgeted",
}
