{{- define "fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "labels" -}}
{{ include "selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "pluginDir" -}}
{{- /* KUBELETDIR/plugins_registry/NAME-reg.sock */ -}}
{{- if gt (add (len .Values.kubeletDir) (len .Values.driver.name)) 80 -}}
{{- fail "kubeletDir and driver.name are longer than 80 characters together: the path of a socket in kubelet's folder has at most 107" -}}
{{- end -}}
{{ .Values.kubeletDir }}/plugins/{{ .Values.driver.name }}
{{- end -}}

{{/* What all sidecars have in common, for (list . NAME). They need no capability at all; root, because the driver's socket is root's alone. */}}
{{- define "sidecar" -}}
{{- $sidecars := (index . 0).Values.sidecars -}}
{{- $own := index $sidecars (index . 1) -}}
imagePullPolicy: {{ $sidecars.pullPolicy }}
securityContext:
  runAsUser: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
  {{- with $sidecars.seLinuxType }}
  seLinuxOptions:
    type: {{ . | quote }}
  {{- end }}
resources:
  {{- toYaml ($own.resources | default $sidecars.resources) | nindent 2 }}
{{- end -}}

{{/* What kubelet would mount into all containers of the pod, for those that name it. */}}
{{- define "token" -}}
- name: token
  projected:
    defaultMode: 0400
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end -}}
