#!/bin/bash
# Entry point of a container of the pipeline. `executor`: started by Spark on Kubernetes, configured by the
# environment. `driver …`: started by `spark-submit --deploy-mode cluster`. Otherwise: `vdl pipeline` with
# these arguments, as a driver, by spark-submit with SUBMIT_CONF, one setting a line.
set -euo pipefail

case "${1:-}" in
executor)
  java_options=()
  # SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …: one option each, which may have spaces, in this order.
  for ((n = 0; ; n++)); do
    name="SPARK_JAVA_OPT_$n"
    [[ -v $name ]] || break
    java_options+=("${!name}")
  done
  exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${java_options[@]}" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*:${SPARK_CLASSPATH:-}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
driver)
  shift
  exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
    --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
  ;;
*)
  settings=()
  while IFS= read -r line; do
    [[ -z ${line// /} ]] || settings+=(--conf "$line")
  done <<<"${SUBMIT_CONF:-}"
  exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client "${settings[@]}" \
    "$(dirname "$0")/submit.py" "$@"
  ;;
esac
