package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/csi-local-lvm/csi-local-lvm/pkg/volume"
)

const (
	formatText = "text"
	formatJSON = "json"
)

// setUpLogging makes klog write in the format. Text is klog's own, on standard error.
func setUpLogging(w io.Writer, format string, verbosity *flag.Flag) error {
	switch format {
	case formatText:
		return nil
	case formatJSON:
		v, err := strconv.Atoi(verbosity.Value.String())
		if err != nil {
			return fmt.Errorf("-v: %w", err)
		}
		klog.SetSlogLogger(slog.New(jsonHandler(w, v)))
		return nil
	default:
		return volume.Invalid("--logging-format", format, "known are text and json")
	}
}

// jsonHandler writes one JSON object per line. klog's verbosity n is slog's level -n.
func jsonHandler(w io.Writer, verbosity int) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.Level(-verbosity), ReplaceAttr: readable})
}

// readable writes values in words as the text format does: durations and codes would be bare numbers in JSON.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case slog.Level:
		if v < slog.LevelInfo {
			v = slog.LevelInfo // a verbosity, not slog's DEBUG
		}
		a.Value = slog.StringValue(v.String())
	case error:
		a.Value = slog.StringValue(v.Error())
	case fmt.Stringer:
		if a.Value.Kind() != slog.KindTime {
			a.Value = slog.StringValue(v.String())
		}
	}
	return a
}
