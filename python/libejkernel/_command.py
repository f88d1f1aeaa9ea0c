# SPDX-License-Identifier: Apache-2.0
"""The command `ejk`, as it is installed with the package."""

import os
import sys


def main():
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "ejk")
    os.execv(command, ["ejk", *sys.argv[1:]])


if __name__ == "__main__":
    main()
