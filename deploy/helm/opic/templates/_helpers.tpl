{{- define "opic.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "opic.labels" -}}
app.kubernetes.io/name: opic
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* What each pod of ours is allowed, and where it comes from. */}}
{{- define "opic.pod" -}}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "opic.container" -}}
image: {{ include "opic.image" . }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
envFrom:
  - configMapRef: {name: opic}
  - secretRef: {name: {{ .Values.secret }}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{/* Alive, not ready: a store or Kafka that does not answer must not get processes killed. */}}
{{- define "opic.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "opic.ping" -}}
command: [/bin/sh, -c, 'REDISCLI_AUTH="$STORE_ADMIN_PASSWORD" valkey-cli --user admin PING | grep -q PONG']
{{- end }}
