{{- define "gpuledger.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of a component: (dict "root" $ "component" "agent"). */}}
{{- define "gpuledger.selector" -}}
app.kubernetes.io/name: gpuledger
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "gpuledger.namespace" -}}
{{- default .Release.Namespace .Values.namespace.name -}}
{{- end -}}

{{- define "gpuledger.chartLabels" -}}
{{ include "gpuledger.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* Metadata of an object: (dict "root" $ "component" "agent" "name" "x" "labels" {} "annotations" {} "namespace" "").
     "clusterWide" true: no namespace. The chart's own labels win over the user's. */}}
{{- define "gpuledger.metadata" -}}
{{- $common := .root.Values -}}
name: {{ .name }}
{{- if not .clusterWide }}
namespace: {{ default (include "gpuledger.namespace" .root) .namespace }}
{{- end }}
labels:
  {{- $own := fromYaml (include "gpuledger.chartLabels" .) }}
  {{- mergeOverwrite (dict) (default (dict) $common.commonLabels) (default (dict) .labels) $own | toYaml | nindent 2 }}
{{- with mergeOverwrite (dict) (default (dict) $common.commonAnnotations) (default (dict) .annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gpuledger.account" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "gpuledger.name" .root) .component) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end -}}

{{- define "gpuledger.image" -}}
{{- $image := (index .root.Values .component).image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "gpuledger.collectorUrl" -}}
{{- if .Values.agent.collectorUrl -}}
{{ .Values.agent.collectorUrl }}
{{- else -}}
http{{ if .Values.collector.tlsSecret }}s{{ end }}://{{ include "gpuledger.name" . }}-collector.{{ include "gpuledger.namespace" . }}.svc:8440
{{- end -}}
{{- end -}}

{{/* A probe of the collector: (dict "root" $ "path" "/healthz" "period" 20 "timeout" 10 "failures" 3). */}}
{{- define "gpuledger.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if .root.Values.collector.tlsSecret }}
  scheme: HTTPS
  {{- end }}
periodSeconds: {{ .period }}
timeoutSeconds: {{ .timeout }}
failureThreshold: {{ .failures }}
{{- end -}}

{{/* TCP port of a URL, which may follow WORKLOAD=. */}}
{{- define "gpuledger.port" -}}
{{- $url := regexFind "https?://.*" . -}}
{{- $port := regexReplaceAll "^https?://[^/?#]*?(?::([0-9]+))?(?:[/?#].*)?$" $url "${1}" -}}
{{- default (ternary "443" "80" (hasPrefix "https:" $url)) $port -}}
{{- end -}}

{{/* The peer of a network policy that is every pod of some namespaces. */}}
{{- define "gpuledger.namespacePeer" -}}
- namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ toJson . }}
{{- end -}}
