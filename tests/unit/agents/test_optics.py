"""Text of mlxlink and ethtool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stethoscope.agents.optics import (
    Ask,
    ToolQueue,
    parse_ethtool_module,
    parse_ethtool_statistics,
    parse_mlxlink,
)

MLXLINK = """
Operational Info
----------------
State                              : Active
Physical state                     : LinkUp
Speed                              : NDR
Width                              : 4x

Module Info
-----------
Identifier                         : OSFP
Compliance                         : 400GBASE-DR4
Vendor Name                        : NVIDIA
Temperature [C]                    : 47 [-5..75]
Voltage [mV]                       : 3248.6 [3135..3465]
Bias Current [mA]                  : 7.530,7.531,7.529,7.528 [2..12]
Rx Power Current [dBm]             : 1.394,1.318,-3.461,1.318 [-10.421..6.0]
Tx Power Current [dBm]             : 0.837,0.914,0.7,0.907 [-8.5..6.0]

Physical Counters and BER Info
------------------------------
Time Since Last Clear [Min]        : 1432.0
Effective Physical Errors          : 0
Effective Physical BER             : 15E-255
Raw Physical Errors Per Lane       : 4,2,1,0
Raw Physical BER                   : 2E-11
"""
ETHTOOL_QSFP = """
\tIdentifier                                : 0x11 (QSFP28)
\tLaser wavelength                          : 850.000nm
\tLaser tx bias current (Channel 1)         : 6.750 mA
\tLaser tx bias current (Channel 2)         : 7.150 mA
\tTransmit avg optical power (Channel 1)    : 1.0873 mW / 0.36 dBm
\tTransmit avg optical power (Channel 2)    : 0.9873 mW / -0.06 dBm
\tRcvr signal avg optical power(Channel 1)  : 0.9842 mW / -0.07 dBm
\tRcvr signal avg optical power(Channel 2)  : 0.0000 mW / -inf dBm
\tModule temperature                        : 45.31 degrees C / 113.55 degrees F
\tModule voltage                            : 3.2544 V
\tLaser bias current high alarm   (Chan 1)  : Off
\tLaser bias current high alarm threshold   : 12.000 mA
\tModule temperature high alarm threshold   : 80.00 degrees C / 176.00 degrees F
"""
ETHTOOL_SFP = """
\tLaser bias current                        : 6.136 mA
\tLaser output power                        : 0.5781 mW / -2.38 dBm
\tReceiver signal average optical power     : 0.6065 mW / -2.17 dBm
\tModule temperature                        : 33.40 degrees C / 92.12 degrees F
\tModule voltage                            : 3.3170 V
\tLaser output power high alarm threshold   : 1.2589 mW / 1.00 dBm
"""


def test_mlxlink_takes_the_weakest_lane() -> None:
    assert parse_mlxlink(MLXLINK) == pytest.approx(
        {
            "optics_temp_celsius": 47,
            "optics_voltage_volts": 3.2486,
            "optics_bias_milliamps": 7.531,
            "optics_rx_power_dbm": -3.461,
            "optics_tx_power_dbm": 0.7,
            "effective_ber": 1.5e-254,
            "raw_ber": 2e-11,
        }
    )


def test_mlxlink_of_a_copper_cable_has_no_optics() -> None:
    text = "Temperature [C] : N/A\nRx Power Current [dBm] : N/A\nBias Current [mA] : N/A"
    assert parse_mlxlink(text) == {}


def test_ethtool_of_a_qsfp_and_its_dark_lane() -> None:
    assert parse_ethtool_module(ETHTOOL_QSFP) == {
        "optics_bias_milliamps": 7.15,
        "optics_tx_power_dbm": -0.06,
        "optics_rx_power_dbm": -40.0,
        "optics_temp_celsius": 45.31,
        "optics_voltage_volts": 3.2544,
    }


def test_ethtool_of_an_sfp_without_its_thresholds() -> None:
    assert parse_ethtool_module(ETHTOOL_SFP) == {
        "optics_bias_milliamps": 6.136,
        "optics_tx_power_dbm": -2.38,
        "optics_rx_power_dbm": -2.17,
        "optics_temp_celsius": 33.4,
        "optics_voltage_volts": 3.317,
    }


def test_statistics_keep_pause_ecn_and_discards() -> None:
    text = """NIC statistics:
     rx_packets: 100
     rx_prio3_pause: 5
     tx_prio3_pause_duration: 6
     rx_ecn_mark: 7
     rx_discards_phy: 8
     rx_prio0_bytes: 9
     ch0_events: 10
     rx_out_of_buffer: -1
"""
    assert parse_ethtool_statistics(text) == {
        "rx_prio3_pause": 5,
        "tx_prio3_pause_duration": 6,
        "rx_ecn_mark": 7,
        "rx_discards_phy": 8,
    }


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    for parse in (parse_mlxlink, parse_ethtool_module, parse_ethtool_statistics):
        assert isinstance(parse(text), dict)


def test_a_tool_that_hangs_is_killed_and_the_next_one_runs() -> None:
    tools = ToolQueue(timeout_secs=1)
    tools.put([Ask(("a", 1), "module", ("sleep", "600")), Ask(("b", 1), "module", ("echo", "hi"))])
    assert tools.poll(0) == []
    (dead,) = tools.poll(2_000_000_000)
    assert (dead.ask.port, dead.text) == (("a", 1), None)
    (alive,) = tools.poll(2_000_000_001, wait_secs=60)
    assert (alive.ask.port, alive.text) == (("b", 1), "hi\n")
    assert tools.idle


def test_a_tool_that_does_not_exist_is_an_answer() -> None:
    tools = ToolQueue(timeout_secs=1)
    tools.put([Ask(("a", 1), "module", ("/nonexistent/tool",))])
    (answer,) = tools.poll(0)
    assert answer.text is None


def test_close_ends_what_runs() -> None:
    tools = ToolQueue(timeout_secs=1)
    tools.put([Ask(("a", 1), "module", ("sleep", "600"))])
    tools.poll(0)
    tools.close()
    assert tools.idle
