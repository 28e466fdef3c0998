{{- define "rolloutpool.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rolloutpool.selector" -}}
app.kubernetes.io/name: rolloutpool-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rolloutpool.labels" -}}
{{ include "rolloutpool.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: rolloutpool
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "rolloutpool.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rolloutpool.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "rolloutpool.image" -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}

{{/* What the operator may do where its pools are. It holds what it grants the routers (get, list, watch). */}}
{{- define "rolloutpool.poolRules" -}}
- apiGroups: [rolloutpool.dev]
  resources: [rolloutpools]
  verbs: [get, list, watch]
- apiGroups: [rolloutpool.dev]
  resources: [rolloutpools/status]
  verbs: [patch]
- apiGroups: [rolloutpool.dev]
  resources: [rolloutpools/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch]
{{- end -}}

{{/* Where the heartbeat lives: a namespace that is watched. */}}
{{- define "rolloutpool.heartbeatNamespace" -}}
{{- if and .Values.watchNamespaces (not (has .Release.Namespace .Values.watchNamespaces)) -}}
{{- first .Values.watchNamespaces -}}
{{- else -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end -}}
