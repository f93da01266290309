// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/opsledger/opsledger/ledger"
)

// Targets answer within milliseconds or seconds: the buckets tell those apart.
func TestHowLongTargetsTakeIsSeen(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	m, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter(""), func(tool ledger.Tool) string { return string(tool) })
	if err != nil {
		t.Fatal(err)
	}
	m.asked("t", "found", 0)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, of := range all.ScopeMetrics[0].Metrics {
		if h, ok := of.Data.(metricdata.Histogram[float64]); ok && of.Name == "ledger.evidence.duration" {
			if bounds := h.DataPoints[0].Bounds; bounds[0] != 0.005 || bounds[len(bounds)-1] != 30 {
				t.Errorf("its buckets end at %v seconds", bounds)
			}
			return
		}
	}
	t.Error("it is not measured")
}
