"""The wire messages: .proto files and the code generated from them. `make proto` regenerates the code; nothing here is
edited by hand.
"""
