{{/* Every object's name begins with it, and has at most 63 characters. A long one ends in a hash, so that two releases do not meet. */}}
{{- define "minutehand.name" -}}
{{- $name := printf "%s-minutehand" .Release.Name -}}
{{- if gt (len $name) 40 -}}{{- $name = printf "%s-%s" ($name | trunc 31 | trimSuffix "-") (sha256sum $name | trunc 8) -}}{{- end -}}
{{- $name -}}
{{- end -}}

{{/* What all pods have in common: where they may run, and by which account. */}}
{{- define "minutehand.placed" -}}
automountServiceAccountToken: false
securityContext:
  {{- include "minutehand.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* How many replicas a Deployment with an autoscaler is given: as many as it has, because Helm would otherwise set them back. */}}
{{- define "minutehand.replicas" -}}
{{- $there := lookup "apps/v1" "Deployment" .root.Release.Namespace (printf "%s-%s" (include "minutehand.name" .root) .service) -}}
{{- $now := dig "spec" "replicas" 0 $there | int -}}
{{- max $now (int .scaling.min) -}}
{{- end -}}

{{- define "minutehand.labels" -}}
app.kubernetes.io/name: minutehand
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "minutehand.selector" -}}
app.kubernetes.io/name: minutehand
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .service }}
{{- end -}}

{{- define "minutehand.image" -}}
{{ .root.Values.image.registry }}/{{ .image }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{/* What a schema cannot say: a sentence for each mistake that would otherwise show when a pod does not start. */}}
{{- define "minutehand.check" -}}
{{- $v := .Values -}}
{{- if contains "." .Release.Name -}}{{- fail "name the release without a dot: a Service cannot have one in its name" -}}{{- end -}}
{{- if eq $v.profile "region" -}}
{{- range $name, $list := dict "cassandra.hosts" $v.servers.cassandra.hosts "kafka.brokers" $v.servers.kafka.brokers "redis.addresses" $v.servers.redis.addresses "zookeeper.servers" $v.servers.zookeeper.servers -}}
{{- if not $list -}}{{- fail (printf "set servers.%s to the HOST:PORT of at least one server" $name) -}}{{- end -}}
{{- end -}}
{{- if not $v.servers.s3.bucket -}}{{- fail "set servers.s3.bucket to the bucket of the archive" -}}{{- end -}}
{{- range $name, $server := $v.servers -}}
{{- if and $server.tls.clientCertificate (not $server.tls.secretName) -}}{{- fail (printf "servers.%s.tls.clientCertificate needs servers.%s.tls.secretName, a Secret with tls.crt and tls.key" $name $name) -}}{{- end -}}
{{- if and $server.username (not $server.passwordSecret.name) -}}{{- fail (printf "servers.%s.username needs servers.%s.passwordSecret.name, a Secret with the password" $name $name) -}}{{- end -}}
{{- end -}}
{{- if and $v.servers.s3.accessKey (not $v.servers.s3.passwordSecret.name) -}}{{- fail "servers.s3.accessKey needs servers.s3.passwordSecret.name, a Secret with the secret key" -}}{{- end -}}
{{- end -}}
{{- if not (or $v.api.tokenSecret.name $v.api.jwt.keys $v.api.tls.clientAuthority $v.api.insecure) -}}
{{- fail "say who may use the API: api.tokenSecret.name, api.jwt.keys or api.tls.clientAuthority; or set api.insecure to let everybody in" -}}
{{- end -}}
{{- if and $v.api.tls.clientAuthority (not $v.api.tls.secretName) -}}{{- fail "api.tls.clientAuthority needs api.tls.secretName, a Secret with ca.crt, tls.crt and tls.key" -}}{{- end -}}
{{- if and $v.api.jwt.keys (not (and $v.api.jwt.issuer $v.api.jwt.audience)) -}}{{- fail "api.jwt.keys needs api.jwt.issuer and api.jwt.audience" -}}{{- end -}}
{{- range $name, $s := $v.services -}}
{{- if and $s.autoscaling.enabled (gt (int $s.autoscaling.min) (int $s.autoscaling.max)) -}}{{- fail (printf "services.%s.autoscaling.min is greater than its max" $name) -}}{{- end -}}
{{- if and $s.autoscaling.enabled (not (dig "requests" "cpu" "" $s.resources)) -}}{{- fail (printf "services.%s.autoscaling needs services.%s.resources.requests.cpu, of which it is a part" $name $name) -}}{{- end -}}
{{- end -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "minutehand.name" .) -}}
{{- if and $there (eq $v.profile "region") -}}{{- fail "this release is one process, whose jobs lie on its volume: install the region under another name, move the jobs, then uninstall this one" -}}{{- end -}}
{{- if and $there (ne (index $there.spec.volumeClaimTemplates 0).spec.resources.requests.storage $v.oneProcess.volume.size) -}}{{- fail "oneProcess.volume.size is fixed once installed: enlarge the PersistentVolumeClaim itself (kubectl edit pvc), and leave the value" -}}{{- end -}}
{{- end -}}

{{/* Which servers a service connects to: it gets the addresses and the secrets of these, and may reach no others. */}}
{{- define "minutehand.needs" -}}
{{- $of := dict
  "job-api" "cassandra redis kafka" "bucket-loader" "cassandra redis kafka zookeeper" "scheduler-worker" "cassandra redis kafka zookeeper"
  "executor" "cassandra redis kafka zookeeper" "retry-manager" "cassandra redis kafka" "audit-writer" "cassandra kafka s3"
  "migration" "cassandra kafka s3" "one-process" "" "test" "" -}}
{{- get $of .service -}}
{{- end -}}

{{/* The environment of one service: what it asks for by its own name, and a setting of values.settings last. */}}
{{- define "minutehand.env" -}}
{{- $v := .root.Values -}}
{{- $env := dict "MINUTEHAND_LOG_LEVEL" $v.logLevel -}}
{{- if eq $v.profile "region" -}}
{{- $_ := set $env "MINUTEHAND_PARTITIONS" $v.partitions -}}
{{- $_ := set $env "MINUTEHAND_ADMIN_LISTEN" "0.0.0.0:9090" -}}
{{- $needs := include "minutehand.needs" . | splitList " " -}}
{{- if has "cassandra" $needs -}}
{{- $_ := set $env "MINUTEHAND_CASSANDRA_HOSTS" (join "," $v.servers.cassandra.hosts) -}}
{{- $_ := set $env "MINUTEHAND_CASSANDRA_KEYSPACE" $v.servers.cassandra.keyspace -}}
{{- if $v.servers.cassandra.datacenter -}}{{- $_ := set $env "MINUTEHAND_CASSANDRA_DATACENTER" $v.servers.cassandra.datacenter -}}{{- end -}}
{{- end -}}
{{- if has "kafka" $needs -}}
{{- $_ := set $env "MINUTEHAND_KAFKA_BROKERS" (join "," $v.servers.kafka.brokers) -}}
{{- $_ := set $env "MINUTEHAND_KAFKA_PREFIX" $v.servers.kafka.prefix -}}
{{- end -}}
{{- if has "redis" $needs -}}
{{- $_ := set $env "MINUTEHAND_REDIS_ADDRESS" (join "," $v.servers.redis.addresses) -}}
{{- $_ := set $env "MINUTEHAND_REDIS_PREFIX" $v.servers.redis.prefix -}}
{{- if $v.servers.redis.cluster -}}{{- $_ := set $env "MINUTEHAND_REDIS_CLUSTER" "true" -}}{{- end -}}
{{- end -}}
{{- if has "zookeeper" $needs -}}
{{- $_ := set $env "MINUTEHAND_ZOOKEEPER_SERVERS" (join "," $v.servers.zookeeper.servers) -}}
{{- $_ := set $env "MINUTEHAND_ZOOKEEPER_ROOT" $v.servers.zookeeper.root -}}
{{- end -}}
{{- if has "s3" $needs -}}
{{- $_ := set $env "MINUTEHAND_S3_BUCKET" $v.servers.s3.bucket -}}
{{- $_ := set $env "MINUTEHAND_S3_REGION" $v.servers.s3.region -}}
{{- if $v.servers.s3.endpoint -}}{{- $_ := set $env "MINUTEHAND_S3_ENDPOINT" $v.servers.s3.endpoint -}}{{- end -}}
{{- if $v.servers.s3.accessKey -}}{{- $_ := set $env "MINUTEHAND_S3_ACCESS_KEY" $v.servers.s3.accessKey -}}{{- $_ := set $env "MINUTEHAND_S3_SECRET_KEY_FILE" "/etc/minutehand/s3-password/value" -}}{{- end -}}
{{- end -}}
{{- range $name, $server := $v.servers -}}
{{- if not (has $name $needs) -}}{{- continue -}}{{- end -}}
{{- $of := printf "MINUTEHAND_%s_" (upper $name) -}}
{{- if and $server.username (ne $name "s3") -}}
{{- $_ := set $env (print $of "USERNAME") $server.username -}}
{{- $_ := set $env (print $of "PASSWORD_FILE") (printf "/etc/minutehand/%s-password/value" $name) -}}
{{- end -}}
{{- if $server.tls.enabled -}}
{{- if ne $name "s3" -}}{{- $_ := set $env (print $of "TLS") "true" -}}{{- end -}}
{{- if $server.tls.secretName -}}{{- $_ := set $env (print $of "TLS_CA") (printf "/etc/minutehand/%s-tls/ca.crt" $name) -}}{{- end -}}
{{- if $server.tls.serverName -}}{{- $_ := set $env (print $of "TLS_NAME") $server.tls.serverName -}}{{- end -}}
{{- if $server.tls.clientCertificate -}}
{{- $_ := set $env (print $of "TLS_CERTIFICATE") (printf "/etc/minutehand/%s-tls/tls.crt" $name) -}}
{{- $_ := set $env (print $of "TLS_KEY") (printf "/etc/minutehand/%s-tls/tls.key" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if or (eq .service "job-api") (eq .service "one-process") -}}
{{- $_ := set $env "MINUTEHAND_LISTEN" "0.0.0.0:8080" -}}
{{- if $v.api.insecure -}}{{- $_ := set $env "MINUTEHAND_INSECURE" "true" -}}{{- end -}}
{{- if $v.api.tokenSecret.name -}}{{- $_ := set $env "MINUTEHAND_AUTH_TOKEN_FILE" "/etc/minutehand/api-token/value" -}}{{- end -}}
{{- if $v.api.jwt.keys -}}
{{- $_ := set $env "MINUTEHAND_JWT_KEYS" $v.api.jwt.keys -}}
{{- $_ := set $env "MINUTEHAND_JWT_ISSUER" $v.api.jwt.issuer -}}
{{- $_ := set $env "MINUTEHAND_JWT_AUDIENCE" $v.api.jwt.audience -}}
{{- $_ := set $env "MINUTEHAND_JWT_TENANT_CLAIM" $v.api.jwt.tenantClaim -}}
{{- $_ := set $env "MINUTEHAND_JWT_ROLE_CLAIM" $v.api.jwt.roleClaim -}}
{{- end -}}
{{- if $v.api.tls.secretName -}}
{{- $_ := set $env "MINUTEHAND_TLS_CERTIFICATE" "/etc/minutehand/api-tls/tls.crt" -}}
{{- $_ := set $env "MINUTEHAND_TLS_KEY" "/etc/minutehand/api-tls/tls.key" -}}
{{- if $v.api.tls.clientAuthority -}}{{- $_ := set $env "MINUTEHAND_TLS_CLIENT_CA" "/etc/minutehand/api-tls/ca.crt" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if has .service (list "executor" "bucket-loader" "one-process") -}}
{{- if $v.allowPrivateTargets -}}{{- $_ := set $env "MINUTEHAND_ALLOW_PRIVATE_TARGETS" "true" -}}{{- end -}}
{{- end -}}
{{- if eq .service "executor" -}}{{- $_ := set $env "MINUTEHAND_DRAIN_LIMIT" (printf "%ds" (int $v.drainLimitSeconds)) -}}{{- end -}}
{{- if eq .service "one-process" -}}{{- $_ := set $env "MINUTEHAND_DATA" "/var/lib/minutehand" -}}{{- end -}}
{{- if eq .service "migration" -}}
{{- $_ := set $env "MINUTEHAND_CASSANDRA_REPLICATION" $v.servers.cassandra.replication -}}
{{- $_ := set $env "MINUTEHAND_KAFKA_PARTITIONS" $v.servers.kafka.partitions -}}
{{- $_ := set $env "MINUTEHAND_KAFKA_REPLICATION" $v.servers.kafka.replication -}}
{{- end -}}
{{/* Helm reads a number as a float, whose text may have an exponent. */}}
{{- range $name, $value := $v.settings -}}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) -}}{{- $value = int64 $value -}}{{- end -}}
{{- $_ := set $env $name $value -}}
{{- end -}}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* Secrets, each mounted as files that are replaced while the pod runs. */}}
{{- define "minutehand.mounts" -}}
{{- range $name := include "minutehand.mounted" . | trim | splitList "\n" }}{{- if $name }}
- name: {{ $name }}
  mountPath: /etc/minutehand/{{ $name }}
  readOnly: true
{{- end }}{{- end }}
{{- end -}}

{{- define "minutehand.mounted" -}}
{{- $v := .root.Values -}}
{{- $needs := include "minutehand.needs" . | splitList " " }}
{{- if eq $v.profile "region" }}
{{- range $name, $server := $v.servers }}
{{- if not (has $name $needs) }}{{ continue }}{{ end }}
{{- if and $server.tls.enabled $server.tls.secretName }}
{{ $name }}-tls
{{- end }}
{{- if and $server.passwordSecret (or $server.username $server.accessKey) }}
{{ $name }}-password
{{- end }}
{{- end }}
{{- end }}
{{- if has .service (list "job-api" "one-process" "test") }}
{{- if $v.api.tokenSecret.name }}
api-token
{{- end }}
{{- if $v.api.tls.secretName }}
api-tls
{{- end }}
{{- end }}
{{- end -}}

{{- define "minutehand.volumes" -}}
{{- $v := .root.Values -}}
{{- range $name := include "minutehand.mounted" . | trim | splitList "\n" }}{{- if $name }}
- name: {{ $name }}
  secret:
    defaultMode: 0440
{{- if eq $name "api-token" }}
    secretName: {{ $v.api.tokenSecret.name }}
    items: [{key: {{ $v.api.tokenSecret.key }}, path: value}]
{{- else if eq $name "api-tls" }}
    secretName: {{ $v.api.tls.secretName }}
{{- else }}
{{- $server := index $v.servers (splitList "-" $name | first) }}
{{- if hasSuffix "-tls" $name }}
    secretName: {{ $server.tls.secretName }}
{{- else }}
    secretName: {{ $server.passwordSecret.name }}
    items: [{key: {{ $server.passwordSecret.key }}, path: value}]
{{- end }}
{{- end }}
{{- end }}{{- end }}
{{- end -}}

{{- define "minutehand.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "minutehand.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
